// The command line: arguments to Arguments, errors to one line and an exit code.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/fail.h"
#include "cli/commands.h"

namespace tessera {

namespace {

using cli::Arguments;

/// What a model needs that is run or lowered, but for its name and its layout.
void add_job(CLI::App* app, Arguments& a) {
  app->add_option("--set", a.sets,
                  "key=value; keys may be short where unambiguous: --set layers=4 lr=3e-4")
      ->take_all();
  app->add_option("--mesh", a.mesh,
                  "axes and sizes: \"data:2;model:2\"; default data:N over the ranks there are");
  app->add_option("--threads", a.threads,
                  "threads that share the kernels of a rank (train.threads); 0: cores over ranks");
  app->add_option("--timeout", a.timeout, "seconds to wait for a peer before naming it (120)");
  app->add_option("--device", a.device,
                  "cpu (default), cuda, cuda:share (processes may share a card), or auto");
}

void add_model(CLI::App* app, Arguments& a) {
  app->add_option("model", a.model,
                  "gpt, mlp, cnn, or a TOML file with tables model, train, data, layout")
      ->required();
  add_job(app, a);
  app->add_option("--layout", a.layout, "rules: \"batch:data;heads,ff,vocab:model\", or @FILE");
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
                  "profile to predict times with: a100-80gb, h100, h200, ... or a TOML file; "
                  "default: what tessera calibrate measured here, if it did");
}

void add_json(CLI::App* app, Arguments& a) {
  app->add_option("--json", a.json, "also write the report to FILE");
}

void add_data(CLI::App* app, Arguments& a) {
  app->add_option("--data", a.data, "a file or folder");
}

struct Command {
  CLI::App* app;
  std::function<int()> run;
};

/// Short flags of training that are keys of the configuration.
void add_training(CLI::App* app, Arguments& a) {
  auto key = [&](const char* flag, const char* name, const char* help) {
    app->add_option_function<std::string>(
        flag, [&a, name](const std::string& v) { a.sets.push_back(std::string(name) + "=" + v); },
        help);
  };
  key("--steps", "train.steps", "steps to train");
  key("--batch", "train.batch", "examples of a step, over all ranks");
  key("--dtype", "train.dtype", "of activations: float32 | bfloat16 | float16 | float64");
  key("--seed", "train.seed", "of initial values, dropout and data order");
  key("--recompute", "train.recompute",
      "scopes that backward computes again instead of keeping their values: none | attention | "
      "block | names and globs, joined by commas");
  app->add_option("--log", a.log, "JSON lines, one a step");
  app->add_option("--checkpoint", a.checkpoint, "directory of checkpoints");
  app->add_option("--save-every", a.save_every,
                  "steps between checkpoints; one is always written at the end");
  app->add_option("--keep", a.keep, "checkpoints to keep (3)");
  app->add_option("--staging", a.staging,
                  "most memory of a process for saving beside the run, such as 4GB (1 GiB)");
  app->add_flag("--resume", a.resume, "go on from the last checkpoint");
  app->add_flag("--allow-changes", a.allow_changes,
                "with --resume: also where model, optimizer, batch, seed or data have changed");
  app->add_option("--on-nonfinite", a.on_nonfinite,
                  "a step whose loss or gradient is not finite: stop (default), or skip it and "
                  "count");
  app->add_option("--check-replicas", a.check_replicas,
                  "steps between comparisons of the ranks' copies of parameters (0: never)");
  app->add_option("--csv", a.csv, "the numbers of the log as a table");
  app->add_option("--tensorboard", a.tensorboard, "folder of event files for TensorBoard");
  app->add_flag("--profile", a.profile,
                "at the end: time, memory, flop/s and bytes/s by op and source line");
  app->add_option("--watch", a.watch,
                  "names of tensors (* and ?): their range and norm after each step")
      ->take_all();
  app->add_option("--dump", a.dump, "names of tensors (* and ?): written whole, a file a step")
      ->take_all();
  app->add_option("--dump-dir", a.dump_dir, "folder of --dump");
  app->add_option("--dump-every", a.dump_every, "steps between dumps (1)");
  app->add_option(
      "--trace", a.trace,
      "write when each step ran on each rank to FILE, for Perfetto or chrome://tracing");
}

template <class Add>
void add_files(Add& add, Arguments& a) {
  CLI::App* checkpoint =
      add("checkpoint", "what a checkpoint holds, and whether every byte of it is right",
          "tessera checkpoint verify out/run\n  tessera checkpoint show out/run/step-00000200",
          [&] { return cli::checkpoint(a); });
  checkpoint->add_option("show|verify DIR", a.words, "of one checkpoint, or of all in a directory")
      ->expected(2)
      ->required();
  CLI::App* convert =
      add("convert", "between a checkpoint and one safetensors file of whole tensors",
          "tessera convert out/run model.safetensors --rename \"gpt.*=transformer.*\"\n"
          "  tessera convert model.safetensors out/from-elsewhere",
          [&] { return cli::convert(a); });
  convert->add_option("FROM TO", a.words, "a checkpoint and a file, or a file and a checkpoint")
      ->expected(2)
      ->required();
  convert->add_option("--rename", a.renames, "OLD=NEW, with one * in both: names of tensors")
      ->take_all();
  convert->add_flag("--all", a.all, "optimizer state too");
  CLI::App* report = add("report", "one HTML page, which needs no network, from the log of train",
                         "tessera report run.jsonl --out run.html", [&] { return cli::report(a); });
  report->add_option("LOG", a.words, "what train --log wrote")->expected(1)->required();
  report->add_option("--out", a.out, "the page (the log's name with .html)");
}

template <class Add>
void add_checks(Add& add, Arguments& a, const std::vector<ModelSpec>& models) {
  CLI::App* explain = add(
      "explain", "every collective of a layout and why it is there; memory; redundant compute",
      "tessera explain gpt --mesh \"data:4;model:8\" --layout \"batch:data;heads,ff,vocab:model\"",
      [&] { return cli::explain(a, models); });
  add_model(explain, a);
  add_json(explain, a);
  add_machine(explain, a);
  explain->add_option("--print-after", a.print_after,
                      "print the model after a pass: partition, masks, localize, memory");
  CLI::App* verify = add("verify", "train under every legal layout and compare with one rank",
                         "tessera verify gpt --mesh \"a:2;b:2;c:2\" --steps 20 --dtype float64",
                         [&] { return cli::verify(a, models); });
  add_model(verify, a);
  verify->add_option("--layouts", a.layouts, "all, or a file with one layout a line");
  verify->add_option("--steps", a.steps, "steps of training (3)");
  verify->add_option("--tolerance", a.tolerance,
                     "largest relative difference (1e-10 in float64, else 1e-5)");
  verify->add_option_function<std::string>(
      "--dtype", [&a](const std::string& v) { a.sets.push_back("train.dtype=" + v); },
      "float32 or float64");
  add_json(verify, a);
}

template <class Add>
void add_compare(Add& add, Arguments& a, const std::vector<ModelSpec>& models) {
  CLI::App* compare = add(
      "compare", "the first node whose value differs between two layouts or two dumps",
      "tessera compare gpt \"batch:rows\" \"batch:rows;heads,ff:cols\" --mesh \"rows:2;cols:2\"\n"
      "  tessera compare gpt \"\" \"batch:rows\" --mesh rows:4     # \"\": nothing is split\n"
      "  tessera compare dumps-of-one-build dumps-of-another",
      [&] { return cli::compare(a, models); });
  compare
      ->add_option("MODEL A B", a.words,
                   "a model and two layouts; or two files or folders of train --dump")
      ->expected(2, 3)
      ->required();
  add_job(compare, a);
  compare->add_option("--steps", a.steps, "steps of training (1)");
  compare->add_option("--tolerance", a.tolerance,
                      "largest relative difference (1e-10 in float64, 1e-4 in float32, 2e-2 in "
                      "16 bits, else 0)");
  compare->add_option_function<std::string>(
      "--dtype", [&a](const std::string& v) { a.sets.push_back("train.dtype=" + v); },
      "float32, float64, bfloat16 or float16");
  add_json(compare, a);
}

template <class Add>
void add_bench(Add& add, Arguments& a, const std::vector<ModelSpec>& models) {
  CLI::App* bench =
      add("bench", "times of a product, a collective or a training step, and their rates",
          "tessera bench all_reduce --mesh data:2 --size 1024 1048576\n"
          "  mpirun -n 2 tessera bench matmul --size 2048 --threads 1 --layout depth:ranks\n"
          "  tessera bench train gpt --mesh data:2 --set layers=2",
          [&] { return cli::bench(a, models); });
  bench
      ->add_option("WHAT [MODEL]", a.words,
                   "matmul, all_reduce, all_gather, reduce_scatter, all_to_all; or train and a "
                   "model (gpt), with its dims in --set")
      ->expected(1, 2)
      ->required();
  add_job(bench, a);
  bench->add_option("--layout", a.layout,
                    "of train; of matmul over dims rows, depth and cols (rows split)");
  bench->add_option("--size", a.sizes,
                    "rows, columns and depth of matmul (1024); elements of a collective (1048576)");
  bench->add_option("--steps", a.steps, "runs to take the median of, after three (20)");
  bench->add_option(
      "--dtype", a.dtype,
      "of matmul and collectives: float32, float64, bfloat16 or float16; train: --set dtype=");
  add_json(bench, a);
}

template <class Add>
void add_simulate(Add& add, Arguments& a, const std::vector<ModelSpec>& models) {
  CLI::App* simulate =
      add("simulate", "a model on a described machine of any size; or published runs, predicted",
          "tessera simulate gpt --machine h100 --mesh \"data:128;model:8\" --set batch=1024 \\\n"
          "    --layout \"batch:data;heads,ff,vocab:model\" --trace timeline.json\n"
          "  tessera simulate --runs published_runs.csv --json report.json",
          [&] { return cli::simulate(a, models); });
  add_model(simulate, a);
  simulate->get_option("model")->required(false);
  add_machine(simulate, a);
  add_json(simulate, a);
  simulate->add_option("--runs", a.runs, "a CSV file of published runs (docs/simulate.md)");
  simulate->add_option("--trace", a.trace, "write the time line to FILE, for Perfetto");
  simulate->add_option("--stragglers", a.stragglers,
                       "standard deviation of a rank's time, a share of it (0)");
  simulate->add_option("--failure-hours", a.failure_hours,
                       "mean hours until one device fails (0: never): goodput");
  simulate->add_option("--checkpoint-seconds", a.checkpoint_seconds, "that writing one takes (30)");
  simulate->add_option("--restart-seconds", a.restart_seconds, "from a failure to going on (300)");
}

template <class Add>
void add_measuring(Add& add, Arguments& a, const std::vector<ModelSpec>& models) {
  CLI::App* calibrate =
      add("calibrate", "measures this machine: a profile for explain, simulate, sweep and diff",
          "mpirun -n 2 tessera calibrate --threads 1 --out here.toml",
          [&] { return cli::calibrate(a); });
  calibrate->add_option("--mesh", a.mesh, "each of its axes is measured (ranks:N)");
  calibrate->add_option("--threads", a.threads, "of a rank; 0: cores over ranks");
  calibrate->add_option("--timeout", a.timeout, "seconds to wait for a peer (120)");
  calibrate->add_option("--out", a.out, "the profile; default: the one that is used here");
  CLI::App* sweep = add("sweep", "runs every layout of a model, measured beside predicted",
                        "tessera sweep gpt --devices 4 --set batch=8,16 --steps 10 --budget 20m",
                        [&] { return cli::sweep(a, models); });
  add_model(sweep, a);
  add_machine(sweep, a);
  sweep->add_option("--layouts", a.layouts, "all, or a file with one layout a line");
  sweep->add_option("--devices", a.devices, "all meshes of so many ranks");
  sweep->add_option("--meshes", a.meshes, "all: of the ranks there are");
  sweep->add_option("--steps", a.steps, "steps to take the median of (5)");
  sweep->add_option("--budget", a.budget, "time to measure for: 90s, 20m (default), 2h");
  sweep->add_option("--out", a.out,
                    "FILE.csv (sweep.csv); an earlier sweep's is gone on from; FILE.json, .svg and "
                    ".html too");
  CLI::App* diff = add("diff", "which steps differ between two layouts, and what they cost",
                       "tessera diff gpt \"batch:data\" \"batch:data;ff:model\" --machine h100 "
                       "--mesh \"data:2;model:2\"",
                       [&] { return cli::diff(a, models); });
  diff->add_option("MODEL A B", a.words, "a model and two layouts")->expected(3)->required();
  add_job(diff, a);
  add_machine(diff, a);
  add_json(diff, a);
}

template <class Add>
void add_solve(Add& add, Arguments& a) {
  CLI::App* solve = add("solve", "the cheapest strategies of a problem file, with a bound",
                        "tessera solve problem.json.gz --time 60 --json solution.json",
                        [&] { return cli::solve(a); });
  solve
      ->add_option("FILE", a.model,
                   "nodes with strategies, costs and memory use, edges with tables of costs: the "
                   "format of the ASPLOS 2025 contest, plain or gzipped")
      ->required();
  solve->add_option("--time", a.seconds,
                    "seconds for what is too wide or too tight to be solved exactly (60)");
  add_json(solve, a);
}

/// One line, with the nearest flag or command for one that is unknown.
std::string command_line_error(CLI::App& app, const CLI::ParseError& error) {
  std::string text = error.what();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  std::vector<std::string> known, unknown = app.remaining(true);
  CLI::App* at = &app;
  for (CLI::App* sub : app.get_subcommands({})) {
    if (sub->parsed()) at = sub;
    known.push_back(sub->get_name());
  }
  if (at != &app) {
    known.clear();
    for (const CLI::Option* option : at->get_options()) {
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    }
  }
  if (!unknown.empty()) {
    text = fmt::format("unknown {} '{}'{}", at == &app ? "command" : "argument", unknown[0],
                       suggestion(unknown[0], known));
  }
  return fmt::format("{}; see 'tessera {}--help'", text, at == &app ? "" : at->get_name() + " ");
}

std::vector<Command> add_commands(CLI::App& app, Arguments& a,
                                  const std::vector<ModelSpec>& models) {
  std::vector<Command> commands;
  auto add = [&](const char* name, const char* help, const char* example,
                 std::function<int()> run) {
    CLI::App* sub = app.add_subcommand(name, help);
    sub->footer(std::string("Example:\n  ") + example);
    commands.push_back({sub, std::move(run)});
    return sub;
  };
  CLI::App* info =
      add("info", "what this build and machine have", "tessera info", [&] { return cli::info(a); });
  info->add_option("--mesh", a.mesh, "print which ranks each axis groups");
  add_json(info, a);
  CLI::App* train = add("train", "train a model",
                        "tessera train gpt --data data/moby-dick.txt --mesh \"data:2;model:2\" \\\n"
                        "    --layout \"batch:data;heads,ff,vocab:model\" --steps 200",
                        [&] { return cli::train(a, models); });
  add_model(train, a);
  add_data(train, a);
  add_training(train, a);
  add_json(train, a);
  CLI::App* eval = add("eval", "loss of a checkpoint on held-out data",
                       "tessera eval gpt --data data/moby-dick.txt --checkpoint out/run",
                       [&] { return cli::eval(a, models); });
  add_model(eval, a);
  add_data(eval, a);
  eval->add_option("--checkpoint", a.checkpoint, "directory of checkpoints")->required();
  add_json(eval, a);
  CLI::App* generate = add("generate", "text from a checkpoint",
                           "tessera generate gpt --checkpoint out/run --prompt \"The whale\"",
                           [&] { return cli::generate(a, models); });
  add_model(generate, a);
  generate->add_option("--checkpoint", a.checkpoint, "directory of checkpoints")->required();
  generate->add_option("--prompt", a.prompt, "text to go on from");
  generate->add_option("--tokens", a.tokens, "tokens to make (200)");
  generate->add_option("--temperature", a.temperature, "0 takes the likeliest token (0.8)");
  add_json(generate, a);
  add_files(add, a);
  add_checks(add, a, models);
  add_compare(add, a, models);
  add_bench(add, a, models);
  add_simulate(add, a, models);
  add_measuring(add, a, models);
  add_solve(add, a);
  return commands;
}

}  // namespace

int run_cli(int argc, char** argv, const std::vector<ModelSpec>& own) {
  Arguments args;
  std::vector<ModelSpec> models = own;
  models.insert(models.end(), builtin_models().begin(), builtin_models().end());
  CLI::App app("Tessera: named-dimension models, any layout over any mesh", "tessera");
  app.require_subcommand(1);
  const std::vector<Command> commands = add_commands(app, args, models);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help
    std::fprintf(stderr, "tessera: usage error: %s\n", command_line_error(app, e).c_str());
    return 2;
  }
  try {
    for (const Command& command : commands) {
      if (!command.app->parsed()) continue;
      const int code = command.run();
      errno = 0;
      if (code == 0 && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0))
        fail(ErrorKind::io,
             "standard output could not be written{}{}; what it should have held is lost",
             errno != 0 ? ": " : "", errno != 0 ? std::strerror(errno) : "");
      return code;
    }
  } catch (const PeerFailure& e) {
    return cli::report_error(e.kind(), e.what(), true);
  } catch (const Error& e) {
    return cli::report_error(e.kind(), e.what(), false);
  } catch (const std::exception& e) {
    return cli::report_error(ErrorKind::internal, e.what(), false);
  }
  return 2;
}

}  // namespace tessera
