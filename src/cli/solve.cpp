// solve: solves an assignment problem from a file.
#include "base/fail.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/say.h"
#include "tessera/solver.h"

namespace tessera::cli {

int solve(const Arguments& args) {
  TESSERA_REQUIRE(!args.seconds || *args.seconds > 0, "--time is {} s; it must be more than 0",
                  *args.seconds);
  require_place_for(args.json);
  const solver::Problem problem = solver::read_problem(args.model);
  solver::Options options;
  if (args.seconds) options.seconds = *args.seconds;
  const solver::Solution s = solver::solve(problem, options);
  const solver::Evaluation e = solver::evaluate(problem, s.choice);
  say("{}: {} nodes, {} edges; {} nodes after reduction\n",
      problem.name.empty() ? args.model : problem.name, problem.nodes.size(), problem.edges.size(),
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

}  // namespace tessera::cli
