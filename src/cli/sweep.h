// A sweep: its configurations and its results.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace tessera::cli {

struct SweepFlags : ModelFlags {
  std::string layouts = "all", meshes, budget = "20m";
  std::string out;      ///< file of the table; "": none
  int64_t devices = 0;  ///< ranks of the meshes; 0: those there are
  int64_t steps = 5;
  void declare(FlagTable& table);
};

/// combinations: all combinations of the values of --set, "batch=8,16" "lr=1e-3" -> {"batch=8",
/// "lr=1e-3"}, {"batch=16", "lr=1e-3"}. meshes_of: the meshes of a sweep as text.
std::vector<std::vector<std::string>> combinations(const std::vector<std::string>& sets);
std::vector<std::string> meshes_of(const SweepFlags& args);

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

/// The rows, fastest first; behind them, in their order, those that did not run.
std::vector<SweepRow> fastest_first(std::vector<SweepRow> rows);

/// The keys of "a=1 b=2" and their values.
std::map<std::string, std::string> values_of_sets(const std::string& sets);

/// The keys of --set that have several values in a sweep, with them.
using SweptKeys = std::map<std::string, std::set<std::string>>;
SweptKeys swept_keys(const std::vector<SweepRow>& rows);
/// "a=1 b=2": of a row's keys those that are swept, or those that are not.
std::string sets_of(const SweepRow& row, const SweptKeys& swept, bool is_swept);
/// What tells a row from the others: "a=1 data:2 batch:data".
std::string name_of(const SweepRow& row, const SweptKeys& swept);

/// The sweep as lines of a terminal: a row a layout, fastest first, then a sum.
std::string sweep_table(const std::vector<SweepRow>& rows);

/// Measures a few training steps of the planner's best `plans` plans and returns the flags with the
/// fastest. Under a launcher all ranks must call it; all get the same result.
ModelFlags tuned(const ModelFlags& args, int64_t plans, const std::vector<ModelSpec>& models);

/// The rows of an earlier sweep file with this text ("" for none). `path` is for messages. Throws
/// an io error if the text is not a sweep.
std::vector<SweepRow> parse_sweep(const std::string& text, const std::string& path);
/// write_sweep_csv rewrites FILE.csv; write_sweep_report writes FILE.json, .svg and .html at the
/// end. FILE is the path without ".csv".
void write_sweep_csv(const std::string& path, const std::vector<SweepRow>& rows);
void write_sweep_report(const std::string& path, const std::string& title,
                        const std::vector<SweepRow>& rows);
/// The page of a sweep; `title`: the model.
std::string sweep_page(const std::string& title, const std::vector<SweepRow>& rows);

}  // namespace tessera::cli
