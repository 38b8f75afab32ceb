// A sweep: what is to be run, and what came of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace tessera::cli {

/// What a sweep runs over, of its arguments: the values of --set, "batch=8,16" "lr=1e-3" ->
/// {"batch=8", "lr=1e-3"}, {"batch=16", "lr=1e-3"}; meshes as text.
std::vector<std::vector<std::string>> combinations(const std::vector<std::string>& sets);
std::vector<std::string> meshes_of(const Arguments& args);

/// One configuration, mesh and layout.
struct SweepRow {
  std::string sets, mesh, layout;
  std::string program;   ///< its hash: rows with equal ones ran once
  std::string failure;   ///< why it did not run; "" if it did
  int64_t memory = 0;    ///< bytes on a rank
  double predicted = 0;  ///< seconds; 0 without a machine
  double measured = 0;   ///< median seconds of a step; 0: not run
  double least = 0;
  std::string key() const { return sets + "|" + mesh + "|" + layout; }
};

struct SweepSummary {
  int ran = 0, failed = 0, programs = 0;
  double error = -1;  ///< mean of |predicted / measured - 1|; -1 without predictions
  double tau = 0;     ///< over pairs whose medians differ by more than 5 %
  double regret = 0;  ///< of the row predicted to be best, over the best measured
};
SweepSummary summarize(const std::vector<SweepRow>& rows);

/// The arguments with that of the planner's best --tune plans which is fastest in a few steps of
/// training. Under a launcher all ranks call it, and get the same.
Arguments tuned(const Arguments& args, const std::vector<ModelSpec>& models);

/// The rows that an earlier sweep wrote to `path`, from the file's text ("" for none). Throws an io
/// error for a text that is no sweep.
std::vector<SweepRow> parse_sweep(const std::string& text, const std::string& path);
/// Rewrites FILE.csv; at the end also FILE.json, .svg and .html, with FILE as the path without its
/// ".csv".
void write_sweep_csv(const std::string& path, const std::vector<SweepRow>& rows);
void write_sweep_report(const std::string& path, const std::string& title,
                        const std::vector<SweepRow>& rows);

}  // namespace tessera::cli
