#include <cmath>

#include "base/fail.h"
#include "base/files.h"
#include "base/printable.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "cli/watchdog.h"
#include "cli/writing.h"
#include "tessera/checkpoint.h"
#include "tessera/inspect.h"

namespace tessera::cli {

namespace {

struct EvalFlags : ModelFlags, JsonFlag {
  std::string checkpoint;
  bool average = false;
  void declare(FlagTable& table) {
    ModelFlags::declare(table);
    table.add({data_flag(keys),
               {"--checkpoint DIR", &checkpoint, kAgree,
                "Directory of checkpoints. Without it the weights of a folder are evaluated."},
               {"--ema", &average, kAgree, "Evaluates the moving averages of train.ema."}});
    JsonFlag::declare(table);
  }
};

/// The first parameter with a NaN or an infinity. Collective.
std::string why_not_finite(Session& session) {
  for (const std::string& name : session.program().stored_names()) {
    if (const int64_t bad = summarize(session.fetch(name)).non_finite; bad > 0)
      return fmt::format("'{}' has {} values that are not finite; take an earlier checkpoint", name,
                         bad);
  }
  return "the parameters are finite, and what is computed from them is not; a wider --set dtype "
         "may help";
}

int run_eval(const EvalFlags& args, const std::vector<ModelSpec>& models) {
  require_writable(args.json);
  Job job = resolve(args, models, false);
  const std::vector<Checkpoint> all = checkpoints_to_read("eval", args.checkpoint, job);
  Cluster cluster = make_cluster(job, args);
  const Watchdog watchdog(cluster, args.timeout);
  TESSERA_REQUIRE(!args.average || !args.checkpoint.empty(),
                  "--ema is about a checkpoint's moving averages; add --checkpoint DIR");
  if (!all.empty()) take_stored_data(job, all[0]);
  Evaluator evaluator(job, cluster);
  TESSERA_REQUIRE(evaluator.has_data(),
                  "there is no held-out data; give a share: --set held_out=0.1");
  Checkpoint loaded{args.model, 0, {}, ""};
  if (all.empty()) {
    start_parameters(job, evaluator.session());
  } else {
    loaded = load_first(evaluator.session(), all, evaluator.session().program().stored_names(),
                        args.average);
  }
  const Evaluation e = evaluator.run();
  if (cluster.is_root()) {
    say("{}: step {}, loss {:.4f} over {} held-out examples\n", loaded.path, loaded.step, e.loss,
        evaluator.examples());
    nlohmann::json report = {{"checkpoint", loaded.path},
                             {"step", loaded.step},
                             {"eval_loss", json_number(e.loss)},
                             {"examples", evaluator.examples()}};
    if (e.accuracy >= 0) {
      say("accuracy {:.2f} %\n", 100 * e.accuracy);
      report["eval_accuracy"] = e.accuracy;
    }
    for (const auto& [name, value] : e.metrics) {
      say("{} {:.4g}\n", name, value);
      report["eval_" + name] = json_number(value);
    }
    write_report(args.json, report);
  }
  if (!std::isfinite(e.loss))
    fail(ErrorKind::usage, "the loss of '{}' is {}: {}", loaded.path,
         std::isnan(e.loss) ? "NaN" : "infinite", why_not_finite(evaluator.session()));
  return 0;
}

}  // namespace

Command eval_command() {
  return command("eval", "Prints the loss of a checkpoint on held-out data.",
                 "tessera eval gpt --data data/moby-dick.txt --checkpoint out/run", Processes::all,
                 run_eval);
}

}  // namespace tessera::cli
