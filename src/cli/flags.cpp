// Flags shared by several commands, and the commands that plan and predict.
#include "cli/flags.h"

#include <charconv>
#include <cmath>

#include "base/env.h"
#include "base/fail.h"
#include "tessera/pipeline_schedules.h"

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

CLI::Validator written_layout() {
  const auto name = [](std::string& text) -> std::string {
    if (text.empty()) text = ";";
    return "";
  };
  return CLI::Validator(name, "");
}

std::function<int()> by_one_process(Arguments& a, std::function<int()> command) {
  return [&a, command = std::move(command)] {
    a.alone = true;
    return read_environment().rank > 0 ? 0 : command();
  };
}

void add_job(CLI::App* app, Arguments& a) {
  app->add_option("--set", a.sets,
                  "Sets configuration keys: --set layers=4 lr=3e-4. A key may be short where only "
                  "one table has it. tessera info --keys lists them.")
      ->type_name("KEY=VALUE")
      ->take_all();
  app->add_option("--mesh", a.mesh,
                  "Axes of the mesh and their sizes: \"data:2;model:2\". The default is data:N, "
                  "where N is the number of ranks that were started.")
      ->type_name("AXES");
  app->add_option("--threads", a.threads,
                  "Number of threads that share the kernels of a rank (train.threads). 0 divides "
                  "the cores of the host among its ranks.")
      ->check(whole_number(0, kMostThreads));
  app->add_option("--timeout", a.timeout,
                  "Seconds to wait for another rank before an error names it (120).")
      ->check(finite_number(0));
  app->add_option("--device", a.device,
                  "Where the ranks compute: cpu (default), cuda, cuda:share (processes may share a "
                  "GPU) or auto. A prediction for a --machine of GPUs is for cuda by default.")
      ->type_name("DEVICE");
}

namespace {
/// Flags that set a key of the model or of training.
void add_fine_tuning(CLI::App* app, Arguments& a) {
  const auto set = [&a](const char* key) {
    return
        [&a, key](const std::string& value) { a.sets.push_back(std::string(key) + "=" + value); };
  };
  app->add_option("--trainable", a.trainable,
                  "Parameters that are trained, as globs (train.trainable): \"*.norm*.scale\". The "
                  "others are constants. May be repeated.")
      ->type_name("GLOB")
      ->allow_extra_args(false)
      ->take_all();
  app->add_option_function<std::string>(
         "--lora-rank", set("model.lora_rank"),
         "Adds matrices of LoRA of this rank to the dense layers of the blocks, and trains only "
         "them.")
      ->type_name("R");
  app->add_option_function<std::string>("--lora-alpha", set("model.lora_alpha"),
                                        "Scale of these matrices, divided by the rank (16).")
      ->type_name("ALPHA");
  app->add_option_function<std::string>("--lora-dropout", set("model.lora_dropout"),
                                        "Rate of dropout in front of these matrices (0).")
      ->type_name("RATE");
  app->add_option_function<std::string>(
         "--lora-targets", set("model.lora_targets"),
         "The dense layers with LoRA, by the ends of their names: query,value,mlp.*.")
      ->type_name("GLOBS");
}
}  // namespace

void add_model(CLI::App* app, Arguments& a) {
  app->add_option(
         "model", a.model,
         "Name of a model (gpt, mlp or cnn), a TOML file with the tables model, train, data "
         "and layout, or a folder of Hugging Face with config.json.")
      ->required();
  add_job(app, a);
  app->add_option(
         "--layout", a.layout,
         "Rules of the layout: \"batch:data;heads,ff,vocab:model\", or @FILE. The planner "
         "chooses the axes of names:auto, or of all names with auto alone. \"\": nothing is "
         "split.")
      ->transform(written_layout())
      ->type_name("RULES");
  app->add_option("--plan-time", a.seconds, "Seconds that the planner may search (10).");
  add_machine(app, a);
  app->add_option("--zero", a.zero,
                  "Shards what is stored over the axis of --over: 1 optimizer state, 2 gradients "
                  "too, 3 parameters too. It adds rules to the layout, which is printed.");
  app->add_option("--over", a.over, "Axis of the mesh that --zero shards over.")->type_name("AXIS");
  app->add_option("--memory", a.memory,
                  "Memory limit of a rank, such as 16GB. A job that does not fit is refused, and "
                  "the error says what would help. train.recompute=auto recomputes only as much as "
                  "needed.")
      ->type_name("BYTES");
  app->add_option("--microbatch-size", a.microbatch_size,
                  "Number of examples that a data rank computes at a time; gradients are "
                  "accumulated over the batch. auto takes the largest that fits --memory.")
      ->type_name("N|auto");
  app->add_option("--fsdp", a.fsdp, "The same as --zero 3 --over AXIS.")->type_name("AXIS");
  add_fine_tuning(app, a);
}

void add_machine(CLI::App* app, Arguments& a) {
  app->add_option("--machine", a.machine,
                  "Machine profile that times are predicted with, for the planner too: a100-80gb, "
                  "h100, h200 or another name, or a TOML file. The default is what tessera "
                  "calibrate measured here, if it did.")
      ->type_name("MACHINE");
}

void add_json(CLI::App* app, Arguments& a) {
  app->add_option("--json", a.json, "Also writes the report to FILE as JSON.")->type_name("FILE");
}

void add_html(CLI::App* app, Arguments& a) {
  app->add_option("--html", a.html, "Also writes the report to FILE as a page for a browser.")
      ->type_name("FILE");
}

void add_words(CLI::App* app, Arguments& a, const std::vector<Word>& words) {
  for (const Word& word : words) {
    app->add_option_function<std::string>(
           word.name, [&a](const std::string& given) { a.words.push_back(given); }, word.help)
        ->required(word.required);
  }
}

void add_batch(CLI::App* app, Arguments& a) {
  app->add_option_function<std::string>(
         "--batch", [&a](const std::string& v) { a.sets.push_back("train.batch=" + v); },
         "Number of examples in a step, over all ranks.")
      ->type_name("N");
}

void add_recompute(CLI::App* app, Arguments& a) {
  app->add_option_function<std::string>(
         "--recompute", [&a](const std::string& v) { a.sets.push_back("train.recompute=" + v); },
         "Scopes that backward recomputes instead of keeping their values: none, attention, "
         "block, or names and globs joined by commas.")
      ->type_name("SCOPES");
}

namespace {

void add_simulate(const AddCommand& add, Arguments& a, const std::vector<ModelSpec>& models) {
  CLI::App* simulate =
      add("simulate", "Predicts a training step on a described machine of any size.",
          "tessera simulate gpt --machine h100 --mesh \"data:128;model:8\" --batch 1024 \\\n"
          "    --layout \"batch:data;heads,ff,vocab:model\" --trace timeline.json",
          by_one_process(a, [&] { return cli::simulate(a, models); }));
  add_model(simulate, a);
  add_batch(simulate, a);
  add_recompute(simulate, a);
  add_html(simulate, a);
  add_json(simulate, a);
  simulate->add_option("--trace", a.trace, "Writes the timeline to FILE, for Perfetto.")
      ->type_name("FILE");
  std::vector<std::string> schedules;
  for (const PipelineSchedule& s : pipeline_schedules()) {
    if (!s.splits_backward) schedules.push_back(s.name);
  }
  simulate
      ->add_option("--stages", a.stages,
                   "Number of pipeline stages that share the layers. Each has a --mesh of its own, "
                   "and --set microbatches=M pass through them.")
      ->check(whole_number(1, kMostDevices));
  simulate
      ->add_option("--schedule", a.schedule,
                   fmt::format("Schedule of the stages: {}. The default is the first.",
                               fmt::join(schedules, ", ")))
      ->type_name("NAME");
  simulate
      ->add_option("--interleave", a.interleave,
                   "Number of chunks of layers on each stage of an interleaved schedule. The "
                   "default is the fastest number.")
      ->check(whole_number(1, kMostDevices));
  simulate
      ->add_option("--stragglers", a.stragglers,
                   "Standard deviation of a rank's time, as a share of that time (0).")
      ->check(finite_number(0));
  simulate
      ->add_option("--failure-hours", a.failure_hours,
                   "Mean hours until one device fails, from which goodput follows (0: never).")
      ->check(finite_number(0));
  simulate
      ->add_option("--checkpoint-seconds", a.checkpoint_seconds,
                   "Seconds that writing a checkpoint takes (30).")
      ->check(finite_number(0));
  simulate
      ->add_option("--restart-seconds", a.restart_seconds,
                   "Seconds from a failure until training continues (300).")
      ->check(finite_number(0));
}

void add_measuring(const AddCommand& add, Arguments& a, const std::vector<ModelSpec>& models) {
  CLI::App* calibrate = add(
      "calibrate",
      "Measures this machine and writes its profile, for explain, plan, simulate, sweep and diff.",
      "mpirun -n 2 tessera calibrate --threads 1 --out here.toml",
      [&] { return cli::calibrate(a); });
  calibrate->add_option("--mesh", a.mesh, "Axes to measure, one after the other (ranks:N).")
      ->type_name("AXES");
  calibrate
      ->add_option("--threads", a.threads,
                   "Number of threads of a rank. 0 divides the cores of the host among its ranks.")
      ->check(whole_number(0, kMostThreads));
  calibrate
      ->add_option("--timeout", a.timeout,
                   "Seconds to wait for another rank before an error names it (120).")
      ->check(finite_number(0));
  calibrate
      ->add_option("--out", a.out,
                   "File of the profile. The default is the one that other commands read here.")
      ->type_name("FILE");
  add_html(calibrate, a);
  CLI::App* sweep =
      add("sweep", "Runs every layout of a model and prints measured beside predicted times.",
          "tessera sweep gpt --devices 4 --set batch=8,16 --steps 10 --budget 20m",
          [&] { return cli::sweep(a, models); });
  add_model(sweep, a);
  sweep
      ->add_option("--layouts", a.layouts,
                   "Layouts to run: all, auto (the planner's best), or a file with one layout a "
                   "line.")
      ->type_name("all|auto|FILE");
  sweep->add_option("--devices", a.devices, "Sweeps all meshes with N ranks.")
      ->check(whole_number(1, kMostDevices))
      ->type_name("N");
  sweep->add_option("--meshes", a.meshes, "With all: sweeps all meshes of the ranks there are.")
      ->type_name("all");
  sweep->add_option("--steps", a.steps, "Number of steps to take the median of (5).")
      ->check(whole_number(1));
  sweep->add_option("--budget", a.budget, "Time to measure for: 90s, 20m (default) or 2h.")
      ->type_name("TIME");
  sweep
      ->add_option("--out", a.out,
                   "Table of the results (sweep.csv); pages of the same name with .json, .svg and "
                   ".html lie beside it. A sweep that was stopped continues from its table.")
      ->type_name("FILE.csv");
  CLI::App* diff = add("diff", "Shows which steps differ between two layouts, and what they cost.",
                       "tessera diff gpt \"batch:data\" \"batch:data;ff:model\" --machine h100 "
                       "--mesh \"data:2;model:2\"",
                       by_one_process(a, [&] { return cli::diff(a, models); }));
  add_words(diff, a,
            {{"MODEL", "Name of a model, or a TOML file."},
             {"A", "A layout."},
             {"B", "The layout to compare it with."}});
  add_job(diff, a);
  add_machine(diff, a);
  add_html(diff, a);
  add_json(diff, a);
}

void add_solve(const AddCommand& add, Arguments& a) {
  CLI::App* solve =
      add("solve", "Finds the cheapest strategies of a problem file, and a bound on their cost.",
          "tessera solve problem.json.gz --time 60 --json solution.json",
          by_one_process(a, [&] { return cli::solve(a); }));
  solve
      ->add_option("FILE", a.model,
                   "Nodes with strategies, costs and memory use, and edges with tables of costs, "
                   "in the format of the ASPLOS 2025 contest, plain or gzipped.")
      ->required();
  solve->add_option("--time", a.seconds,
                    "Seconds for a problem that is too wide or too tight to be solved exactly "
                    "(60).");
  add_json(solve, a);
}

void add_plan(const AddCommand& add, Arguments& a, const std::vector<ModelSpec>& models) {
  CLI::App* plan = add(
      "plan", "Finds the layout, storage, recompute and microbatches of least predicted step time.",
      "tessera plan gpt --devices 64 --machine h100 --batch 512 --set layers=24 d_model=2048 "
      "heads=16 ff=8192 length=2048\n"
      "  tessera plan gpt --mesh \"data:4;model:8\" --layout \"batch:data;*:auto\" --why-not "
      "\"batch:data;length:model\"",
      by_one_process(a, [&] { return cli::plan(a, models); }));
  add_model(plan, a);
  plan->add_option("--devices", a.devices,
                   "Searches all meshes of N devices with up to three axes, instead of --mesh.")
      ->check(whole_number(1, kMostDevices))
      ->type_name("N");
  plan->add_option("--time", a.seconds, "The same as --plan-time.");
  plan->add_option(
          "--why-not", a.why_not,
          "Layout that is priced beside the best plan, with the microbatches that suit it best.")
      ->type_name("RULES");
  plan->add_option("--why-not-mesh", a.why_not_mesh,
                   "Mesh of the --why-not layout. The default is the plan's.")
      ->type_name("AXES");
  add_batch(plan, a);
  add_html(plan, a);
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
