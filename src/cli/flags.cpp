// Flags that several commands have, and the commands that predict and choose.
#include "cli/flags.h"

#include <charconv>
#include <cmath>

#include "base/env.h"
#include "base/fail.h"

namespace tessera::cli {

namespace {
template <class T>
bool reads(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}
}  // namespace

CLI::Validator whole_number(int64_t least, int64_t most) {
  const auto check = [least, most](const std::string& text) -> std::string {
    int64_t value = 0;
    if (reads(text, value) && value >= least && value <= most) return "";
    return fmt::format("'{}' is not a whole number {} {}{}", text,
                       most < INT64_MAX ? "from" : "of at least", least,
                       most < INT64_MAX ? fmt::format(" to {}", most) : "");
  };
  return CLI::Validator(check, "");
}

CLI::Validator finite_number(double least) {
  const auto check = [least](const std::string& text) -> std::string {
    double value = 0;
    if (reads(text, value) && std::isfinite(value) && value >= least) return "";
    return fmt::format("'{}' is not a number of at least {}", text, least);
  };
  return CLI::Validator(check, "");
}

std::function<int()> by_one_process(Arguments& a, std::function<int()> command) {
  return [&a, command = std::move(command)] {
    a.alone = true;
    return read_environment().rank > 0 ? 0 : command();
  };
}

void add_job(CLI::App* app, Arguments& a) {
  app->add_option("--set", a.sets,
                  "key=value; keys may be short where unambiguous: --set layers=4 lr=3e-4")
      ->take_all();
  app->add_option("--mesh", a.mesh,
                  "axes and sizes: \"data:2;model:2\"; default data:N over the ranks there are");
  app->add_option("--threads", a.threads,
                  "threads that share the kernels of a rank (train.threads); 0: cores over ranks")
      ->check(whole_number(0, kMostThreads));
  app->add_option("--timeout", a.timeout, "seconds to wait for a peer before naming it (120)")
      ->check(finite_number(0));
  app->add_option("--device", a.device,
                  "cpu (default), cuda, cuda:share (processes may share a card), or auto");
}

void add_model(CLI::App* app, Arguments& a) {
  app->add_option("model", a.model,
                  "gpt, mlp, cnn, or a TOML file with tables model, train, data, layout")
      ->required();
  add_job(app, a);
  app->add_option("--layout", a.layout,
                  "rules: \"batch:data;heads,ff,vocab:model\", or @FILE; names:auto, or auto for "
                  "all, leaves it to the planner");
  app->add_option("--plan-time", a.seconds, "seconds of the planner's search (10)");
  add_machine(app, a);
  app->add_option("--zero", a.zero,
                  "with --over AXIS: store split over AXIS 1 optimizer state, 2 gradients too, 3 "
                  "parameters too; adds rules to the layout, which is printed");
  app->add_option("--over", a.over, "the axis of --zero");
  app->add_option(
      "--memory", a.memory,
      "limit of a rank, such as 16GB: what does not fit is refused with what would help; "
      "train.recompute=auto makes again no more than must be");
  app->add_option("--microbatch-size", a.microbatch_size,
                  "examples that a data rank works off at a time; gradients are added up over the "
                  "batch; auto: the most that fit --memory");
  app->add_option("--fsdp", a.fsdp, "AXIS: the same as --zero 3 --over AXIS");
}

void add_machine(CLI::App* app, Arguments& a) {
  app->add_option("--machine", a.machine,
                  "profile to predict times with, for the planner too: a100-80gb, h100, h200, ... "
                  "or a TOML file; "
                  "default: what tessera calibrate measured here, if it did");
}

void add_json(CLI::App* app, Arguments& a) {
  app->add_option("--json", a.json, "also write the report to FILE");
}

void add_words(CLI::App* app, Arguments& a, const std::vector<Word>& words) {
  for (const Word& word : words) {
    app->add_option_function<std::string>(
           word.name, [&a](const std::string& given) { a.words.push_back(given); }, word.help)
        ->required(word.required);
  }
}

namespace {

void add_simulate(const AddCommand& add, Arguments& a, const std::vector<ModelSpec>& models) {
  CLI::App* simulate =
      add("simulate", "a model on a described machine of any size; or published runs, predicted",
          "tessera simulate gpt --machine h100 --mesh \"data:128;model:8\" --set batch=1024 \\\n"
          "    --layout \"batch:data;heads,ff,vocab:model\" --trace timeline.json\n"
          "  tessera simulate --runs published_runs.csv --json report.json",
          by_one_process(a, [&] { return cli::simulate(a, models); }));
  add_model(simulate, a);
  simulate->get_option("model")->required(false);
  add_json(simulate, a);
  simulate->add_option("--runs", a.runs, "a CSV file of published runs (docs/simulate.md)");
  simulate->add_option("--trace", a.trace, "write the time line to FILE, for Perfetto");
  simulate
      ->add_option("--stages", a.stages,
                   "of a pipeline: the layers are dealt to so many stages, each on a --mesh of its "
                   "own; --set microbatches=M pass through them")
      ->check(whole_number(1, kMostDevices));
  simulate->add_option("--schedule", a.schedule, "of the stages: 1f1b (default) or interleaved");
  simulate
      ->add_option("--interleave", a.interleave,
                   "chunks of layers on each stage, interleaved (default: the fastest number)")
      ->check(whole_number(1, kMostDevices));
  simulate
      ->add_option("--stragglers", a.stragglers,
                   "standard deviation of a rank's time, a share of it (0)")
      ->check(finite_number(0));
  simulate
      ->add_option("--failure-hours", a.failure_hours,
                   "mean hours until one device fails (0: never): goodput")
      ->check(finite_number(0));
  simulate->add_option("--checkpoint-seconds", a.checkpoint_seconds, "that writing one takes (30)")
      ->check(finite_number(0));
  simulate->add_option("--restart-seconds", a.restart_seconds, "from a failure to going on (300)")
      ->check(finite_number(0));
}

void add_measuring(const AddCommand& add, Arguments& a, const std::vector<ModelSpec>& models) {
  CLI::App* calibrate =
      add("calibrate", "measures this machine: a profile for explain, simulate, sweep and diff",
          "mpirun -n 2 tessera calibrate --threads 1 --out here.toml",
          [&] { return cli::calibrate(a); });
  calibrate->add_option("--mesh", a.mesh, "each of its axes is measured (ranks:N)");
  calibrate->add_option("--threads", a.threads, "of a rank; 0: cores over ranks")
      ->check(whole_number(0, kMostThreads));
  calibrate->add_option("--timeout", a.timeout, "seconds to wait for a peer (120)")
      ->check(finite_number(0));
  calibrate->add_option("--out", a.out, "the profile; default: the one that is used here");
  CLI::App* sweep = add("sweep", "runs every layout of a model, measured beside predicted",
                        "tessera sweep gpt --devices 4 --set batch=8,16 --steps 10 --budget 20m",
                        [&] { return cli::sweep(a, models); });
  add_model(sweep, a);
  sweep->add_option("--layouts", a.layouts,
                    "all, auto (the planner's best), or a file with one layout a line");
  sweep->add_option("--devices", a.devices, "all meshes of so many ranks")
      ->check(whole_number(1, kMostDevices));
  sweep->add_option("--meshes", a.meshes, "all: of the ranks there are");
  sweep->add_option("--steps", a.steps, "steps to take the median of (5)")->check(whole_number(1));
  sweep->add_option("--budget", a.budget, "time to measure for: 90s, 20m (default), 2h");
  sweep->add_option("--out", a.out,
                    "FILE.csv (sweep.csv); an earlier sweep's is gone on from; FILE.json, .svg and "
                    ".html too");
  CLI::App* diff = add("diff", "which steps differ between two layouts, and what they cost",
                       "tessera diff gpt \"batch:data\" \"batch:data;ff:model\" --machine h100 "
                       "--mesh \"data:2;model:2\"",
                       by_one_process(a, [&] { return cli::diff(a, models); }));
  add_words(diff, a, {{"MODEL", "a model"}, {"A", "a layout"}, {"B", "another one"}});
  add_job(diff, a);
  add_machine(diff, a);
  add_json(diff, a);
}

void add_solve(const AddCommand& add, Arguments& a) {
  CLI::App* solve = add("solve", "the cheapest strategies of a problem file, with a bound",
                        "tessera solve problem.json.gz --time 60 --json solution.json",
                        by_one_process(a, [&] { return cli::solve(a); }));
  solve
      ->add_option("FILE", a.model,
                   "nodes with strategies, costs and memory use, edges with tables of costs: the "
                   "format of the ASPLOS 2025 contest, plain or gzipped")
      ->required();
  solve->add_option("--time", a.seconds,
                    "seconds for what is too wide or too tight to be solved exactly (60)");
  add_json(solve, a);
}

void add_plan(const AddCommand& add, Arguments& a, const std::vector<ModelSpec>& models) {
  CLI::App* plan =
      add("plan", "the layout, storage, recompute and microbatches of least predicted step time",
          "tessera plan gpt --devices 64 --machine h100 --batch 512 --set layers=24 d_model=2048 "
          "heads=16 ff=8192 length=2048\n"
          "  tessera plan gpt --mesh \"data:4;model:8\" --layout \"batch:data;*:auto\" --why-not "
          "\"batch:data;length:model\"",
          by_one_process(a, [&] { return cli::plan(a, models); }));
  add_model(plan, a);
  plan->add_option("--devices", a.devices, "instead of --mesh: all meshes of up to three axes")
      ->check(whole_number(1, kMostDevices));
  plan->add_option("--time", a.seconds, "the same as --plan-time");
  plan->add_flag(
      "--pipeline", a.pipeline,
      "what if the layers were stages of a pipeline (1F1B, interleaved): priced beside the "
      "best plan, for --devices; no command runs one");
  plan->add_option("--why-not", a.why_not, "a layout to be priced beside the best plan");
  plan->add_option("--why-not-mesh", a.why_not_mesh, "the mesh of that layout (the plan's)");
  plan->add_option_function<std::string>(
      "--batch", [&a](const std::string& v) { a.sets.push_back("train.batch=" + v); },
      "examples of a step, over all ranks");
  plan->add_option("--html", a.out, "the page as HTML, to FILE");
  add_json(plan, a);
}

}  // namespace

void add_planning(const AddCommand& add, Arguments& a, const std::vector<ModelSpec>& models) {
  add_plan(add, a, models);
  add_simulate(add, a, models);
  add_measuring(add, a, models);
  add_solve(add, a);
}

}  // namespace tessera::cli
