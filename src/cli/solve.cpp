// solve: solves an assignment problem from a file.
#include "base/fail.h"
#include "base/files.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "tessera/solver.h"

namespace tessera::cli {

namespace {

struct SolveFlags : Invocation, JsonFlag {
  std::string file;
  std::optional<double> seconds;
  void declare(FlagTable& table) {
    table.add({{"FILE",
                &file,
                kOneProcess,
                "Nodes with strategies, costs and memory use, and edges with tables of costs, in "
                "the format of the ASPLOS 2025 contest, plain or gzipped.",
                {},
                true},
               {"--time", &seconds, kOneProcess,
                "Seconds for a problem that is too wide or too tight to be solved exactly (60)."}});
    JsonFlag::declare(table);
  }
};

int run_solve(const SolveFlags& args, const std::vector<ModelSpec>&) {
  TESSERA_REQUIRE(!args.seconds || *args.seconds > 0, "--time is {} s; it must be more than 0",
                  *args.seconds);
  require_writable(args.json);
  const solver::Problem problem = solver::read_problem(args.file);
  solver::Options options;
  if (args.seconds) options.seconds = *args.seconds;
  const solver::Solution s = solver::solve(problem, options);
  const solver::Evaluation e = solver::evaluate(problem, s.choice);
  say("{}: {} nodes, {} edges; {} nodes after reduction\n",
      problem.name.empty() ? args.file : problem.name, problem.nodes.size(), problem.edges.size(),
      s.nodes);
  say("cost   {}\nbound  {}\n", s.cost, s.bound);
  if (s.optimal) {
    say("gap    0: no choice costs less (by {})\n", s.how);
  } else {
    say("gap    {:.4f} %: no choice costs more than that less (by {})\n", 100 * s.gap(), s.how);
  }
  if (problem.limit) {
    say("memory {} of {} at time {}; one more would save {:.6g}\n", e.peak, *problem.limit, e.at,
        s.price);
  }
  say("time   {:.2f} s, the first allowed choice after {:.2f} s\n", s.seconds, s.first_seconds);
  nlohmann::json report = {{"name", problem.name},
                           {"cost", s.cost},
                           {"bound", s.bound},
                           {"gap", s.gap()},
                           {"optimal", s.optimal},
                           {"seconds", s.seconds},
                           {"first_seconds", s.first_seconds},
                           {"method", s.how},
                           {"price", s.price},
                           {"peak", e.peak},
                           {"strategies", s.choice}};
  if (problem.limit) report["usage_limit"] = *problem.limit;
  write_report(args.json, report);
  return 0;
}

}  // namespace

Command solve_command() {
  return command(
      "solve", "Finds the cheapest strategies of a problem file, and a bound on their cost.",
      "tessera solve problem.json.gz --time 60 --json solution.json", Processes::first, run_solve);
}

}  // namespace tessera::cli
