// Where a step's time and memory go.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/session.h"

namespace tessera::cli {

struct Training;

/// One op of one source line: all steps of a function that share both.
struct ProfileRow {
  std::string op, name, source;  ///< name: of the first step
  int64_t steps = 0;             ///< of the Program
  double ms = 0;                 ///< of one run
  double flops = 0, bytes = 0;   ///< of one run
  double results = 0;            ///< bytes that they make
};
/// Most time first. What was not run is left out.
std::vector<ProfileRow> profile_rows(const std::vector<StepTime>& steps);
/// As a table for people; `peak_flops`: of one rank, 0 if it is not known.
std::string profile_table(const std::vector<ProfileRow>& rows, double peak_flops);
/// The same of buckets of collectives, with predicted times if `machine` is not empty.
std::string bucket_table(const std::vector<BucketTime>& rows, const std::string& machine);
/// ", 2 MB of optimizer state in host memory", or "".
std::string offload_text(const Training& t);
/// The first of what the device does otherwise than it would best, a line each, or "".
std::string fallbacks_text(const Training& t);
/// Prints the tables and adds rows and the timeline of one run to the log.
void report_profile(Training& t, double peak_flops);

}  // namespace tessera::cli
