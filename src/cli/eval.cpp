#include "base/fail.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "tessera/checkpoint.h"

namespace tessera::cli {

int eval(const Arguments& args, const std::vector<ModelSpec>& models) {
  require(!args.checkpoint.empty(), "eval needs --checkpoint DIR");
  require_place_for(args.json);
  Job job = resolve(args, models, false);
  Cluster cluster = make_cluster(job, args);
  const std::optional<Checkpoint> latest = find_latest(args.checkpoint);
  require(latest.has_value(), "'{}' holds no checkpoint", args.checkpoint);
  take_stored_model(job, *latest);
  Evaluator evaluator(job, cluster);
  const Evaluation e = evaluator.run_checkpoint(latest->path);
  if (cluster.is_root()) {
    fmt::print("{}: step {}, loss {:.4f} over {} held-out examples\n", latest->path, latest->step,
               e.loss, evaluator.examples());
    nlohmann::json report = {{"checkpoint", latest->path},
                             {"step", latest->step},
                             {"eval_loss", json_number(e.loss)},
                             {"examples", evaluator.examples()}};
    if (e.accuracy >= 0) {
      fmt::print("accuracy {:.2f} %\n", 100 * e.accuracy);
      report["eval_accuracy"] = e.accuracy;
    }
    write_report(args.json, report);
  }
  return 0;
}

}  // namespace tessera::cli
