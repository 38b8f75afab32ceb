// Reports of a step's time and memory.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/session.h"

namespace tessera::cli {

class Progress;
struct Run;

/// All steps of a function that share op and source line.
struct ProfileRow {
  std::string op, name, source;  ///< name: that of the first step
  int64_t steps = 0;             ///< number of Program steps
  double ms = 0;                 ///< per run
  double flops = 0, bytes = 0;   ///< per run
  double results = 0;            ///< bytes of their results
};
/// Longest time first. Steps that did not run are left out.
std::vector<ProfileRow> profile_rows(const std::vector<StepTime>& steps);
/// The rows as a text table. `peak_flops`: of one rank, 0 if unknown.
std::string profile_table(const std::vector<ProfileRow>& rows, double peak_flops);
/// The same for buckets of collectives, with predictions if `machine` is not empty.
std::string bucket_table(const std::vector<BucketTime>& rows, const std::string& machine);
/// ", 2 MB of optimizer state in host memory", or "".
std::string offload_text(const Session& session);
/// The first fallbacks of the device, one per line (Session::fallbacks()), or "".
std::string fallbacks_text(const Session& session);
/// Prints the tables and adds the rows and the timeline of one run to the log.
void report_profile(Run& run, double peak_flops, Progress& progress);

}  // namespace tessera::cli
