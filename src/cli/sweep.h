// A sweep: its configurations and its results.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace tessera::cli {

/// combinations: all combinations of the values of --set, "batch=8,16" "lr=1e-3" -> {"batch=8",
/// "lr=1e-3"}, {"batch=16", "lr=1e-3"}. meshes_of: the meshes of a sweep as text.
std::vector<std::vector<std::string>> combinations(const std::vector<std::string>& sets);
std::vector<std::string> meshes_of(const Arguments& args);

/// One configuration, mesh and layout.
struct SweepRow {
  std::string sets, mesh, layout;
  std::string program;   ///< Program hash; rows with equal hashes run once
  std::string failure;   ///< why it did not run; "" if it ran
  int64_t memory = 0;    ///< bytes per rank
  double predicted = 0;  ///< seconds; 0 without a machine
  double measured = 0;   ///< median seconds per step; 0: not run
  double least = 0;
  std::string key() const { return sets + "|" + mesh + "|" + layout; }
};

struct SweepSummary {
  int ran = 0, failed = 0, programs = 0;
  double error = -1;  ///< mean |predicted / measured - 1|; -1: no predictions
  double tau = 0;     ///< Kendall's tau over pairs whose medians differ by more than 5 %
  double regret = 0;  ///< of the row predicted best, relative to the best measured
};
SweepSummary summarize(const std::vector<SweepRow>& rows);

/// Measures a few training steps of the planner's best --tune plans and returns the arguments with
/// the fastest. Under a launcher all ranks must call it; all get the same result.
Arguments tuned(const Arguments& args, const std::vector<ModelSpec>& models);

/// The rows of an earlier sweep file with this text ("" for none). `path` is for messages. Throws
/// an io error if the text is not a sweep.
std::vector<SweepRow> parse_sweep(const std::string& text, const std::string& path);
/// write_sweep_csv rewrites FILE.csv; write_sweep_report writes FILE.json, .svg and .html at the
/// end. FILE is the path without ".csv".
void write_sweep_csv(const std::string& path, const std::vector<SweepRow>& rows);
void write_sweep_report(const std::string& path, const std::string& title,
                        const std::vector<SweepRow>& rows);

}  // namespace tessera::cli
