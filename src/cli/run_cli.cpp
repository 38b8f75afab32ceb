// The command line: arguments to Arguments, errors to one line and an exit code.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>

#include "base/env.h"
#include "base/fail.h"
#include "cli/flags.h"

namespace tessera {

namespace {

using cli::add_job;
using cli::add_json;
using cli::add_model;
using cli::Arguments;
using cli::finite_number;
using cli::whole_number;

void add_data(CLI::App* app, Arguments& a) {
  app->add_option("--data", a.data, "a file or folder");
}

/// Short flags of training that are keys of the configuration.
void add_training(CLI::App* app, Arguments& a) {
  auto key = [&](const char* flag, const char* name, const char* help) {
    app->add_option_function<std::string>(
        flag, [&a, name](const std::string& v) { a.sets.push_back(std::string(name) + "=" + v); },
        help);
  };
  key("--steps", "train.steps", "steps to train");
  key("--batch", "train.batch", "examples of a step, over all ranks");
  key("--dtype", "train.dtype", "of activations: float32 | bfloat16 | float16 | float64 | float8");
  key("--overlap", "train.overlap", "on | off: every collective is awaited where it starts");
  key("--chunks", "train.chunks",
      "N | auto: parts of a product whose operand or result is collected over ranks");
  key("--offload", "train.offload", "state: keep optimizer state in memory of the host");
  key("--seed", "train.seed", "of initial values, dropout and data order");
  key("--recompute", "train.recompute",
      "scopes that backward computes again instead of keeping their values: none | attention | "
      "block | names and globs, joined by commas");
  app->add_option("--tune", a.tune,
                  "K: of a layout with auto, try the planner's best K for a few steps each, and "
                  "train with the fastest");
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
                "at the end: time, memory, flop/s and bytes/s by op and source line; and what each "
                "exchange held up, beside what is predicted");
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

void add_files(const cli::AddCommand& add, Arguments& a) {
  CLI::App* checkpoint =
      add("checkpoint", "what a checkpoint holds, and whether every byte of it is right",
          "tessera checkpoint verify out/run\n  tessera checkpoint show out/run/step-00000200",
          cli::by_one_process(a, [&] { return cli::checkpoint(a); }));
  add_words(checkpoint, a,
            {{"show|verify", "what to do"}, {"DIR", "one checkpoint, or a directory of several"}});
  CLI::App* convert =
      add("convert", "between a checkpoint and one safetensors file of whole tensors",
          "tessera convert out/run model.safetensors --rename \"gpt.*=transformer.*\"\n"
          "  tessera convert model.safetensors out/from-elsewhere",
          cli::by_one_process(a, [&] { return cli::convert(a); }));
  add_words(
      convert, a,
      {{"FROM", "a checkpoint, or a file"}, {"TO", "a file, or the directory of checkpoints"}});
  convert->add_option("--rename", a.renames, "OLD=NEW, with one * in both: names of tensors")
      ->take_all();
  convert->add_flag("--all", a.all, "optimizer state too");
  CLI::App* report = add("report", "one HTML page, which needs no network, from the log of train",
                         "tessera report run.jsonl --out run.html",
                         cli::by_one_process(a, [&] { return cli::report(a); }));
  add_words(report, a, {{"LOG", "what train --log wrote"}});
  report->add_option("--out", a.out, "the page (the log's name with .html)");
}

void add_checks(const cli::AddCommand& add, Arguments& a, const std::vector<ModelSpec>& models) {
  CLI::App* explain = add(
      "explain", "every collective of a layout and why it is there; memory; redundant compute",
      "tessera explain gpt --mesh \"data:4;model:8\" --layout \"batch:data;heads,ff,vocab:model\"",
      cli::by_one_process(a, [&] { return cli::explain(a, models); }));
  add_model(explain, a);
  add_json(explain, a);
  explain->add_option("--print-after", a.print_after,
                      "print the model after a pass: partition, masks, localize, fuse, epilogue, "
                      "prologue, combine, schedule, chunk or memory");
  CLI::App* verify = add("verify", "train under every legal layout and compare with one rank",
                         "tessera verify gpt --mesh \"a:2;b:2;c:2\" --steps 20 --dtype float64",
                         [&] { return cli::verify(a, models); });
  add_model(verify, a);
  verify->add_option("--layouts", a.layouts, "all, or a file with one layout a line");
  verify->add_option("--steps", a.steps, "steps of training (3)")->check(whole_number(1));
  verify
      ->add_option(
          "--tolerance", a.tolerance,
          "largest relative difference (1e-10 in float64, 1e-5 in float32, 16 units of rounding "
          "in 16 bits)")
      ->check(finite_number(0));
  verify->add_option_function<std::string>(
      "--dtype", [&a](const std::string& v) { a.sets.push_back("train.dtype=" + v); },
      "float32, float64, bfloat16 or float16");
  add_json(verify, a);
}

void add_compare(const cli::AddCommand& add, Arguments& a, const std::vector<ModelSpec>& models) {
  CLI::App* compare = add(
      "compare", "the first node whose value differs between two layouts or two dumps",
      "tessera compare gpt \"batch:rows\" \"batch:rows;heads,ff:cols\" --mesh \"rows:2;cols:2\"\n"
      "  tessera compare gpt \"\" \"batch:rows\" --mesh rows:4     # \"\": nothing is split\n"
      "  tessera compare dumps-of-one-build dumps-of-another",
      [&] { return cli::compare(a, models); });
  add_words(compare, a,
            {{"MODEL", "a model; or a file or folder of train --dump"},
             {"A", "a layout; or another such file or folder"},
             {"B", "another layout, after a model", false}});
  add_job(compare, a);
  compare->add_option("--steps", a.steps, "steps of training (1)")->check(whole_number(1));
  compare
      ->add_option("--tolerance", a.tolerance,
                   "largest relative difference (1e-10 in float64, 1e-4 in float32, 2e-2 in "
                   "16 bits, else 0)")
      ->check(finite_number(0));
  compare->add_option_function<std::string>(
      "--dtype", [&a](const std::string& v) { a.sets.push_back("train.dtype=" + v); },
      "float32, float64, bfloat16 or float16");
  add_json(compare, a);
}

void add_bench(const cli::AddCommand& add, Arguments& a, const std::vector<ModelSpec>& models) {
  CLI::App* bench =
      add("bench", "times of a product, a collective or a training step, and their rates",
          "tessera bench all_reduce --mesh data:2 --size 1024 1048576\n"
          "  mpirun -n 2 tessera bench matmul --size 2048 --threads 1 --layout depth:ranks\n"
          "  tessera bench train gpt --mesh data:2 --set layers=2",
          [&] { return cli::bench(a, models); });
  add_words(bench, a,
            {{"WHAT", "matmul, all_reduce, all_gather, reduce_scatter, all_to_all; or train"},
             {"MODEL", "of train (gpt), with its dims in --set", false}});
  add_job(bench, a);
  bench->add_option("--layout", a.layout,
                    "of train; of matmul over dims rows, depth and cols (rows split)");
  bench->add_option("--size", a.sizes,
                    "rows, columns and depth of matmul (1024); elements of a collective (1048576)");
  bench->add_option("--steps", a.steps, "runs to take the median of, after three (20)")
      ->check(whole_number(1));
  bench->add_option(
      "--dtype", a.dtype,
      "of matmul and collectives: float32, float64, bfloat16 or float16; train: --set dtype=");
  add_json(bench, a);
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

struct Command {
  CLI::App* app;
  std::function<int()> run;
};

std::vector<Command> add_commands(CLI::App& app, Arguments& a,
                                  const std::vector<ModelSpec>& models) {
  std::vector<Command> commands;
  const cli::AddCommand add = [&](const char* name, const char* help, const char* example,
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
  generate->add_option("--tokens", a.tokens, "tokens to make (200)")->check(whole_number(0));
  generate->add_option("--temperature", a.temperature, "0 takes the likeliest token (0.8)")
      ->check(finite_number(0));
  add_json(generate, a);
  add_files(add, a);
  add_checks(add, a, models);
  add_compare(add, a, models);
  add_bench(add, a, models);
  cli::add_planning(add, a, models);
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
    // Of processes that are launched together the first one alone speaks, as in report_error().
    const bool is_help = e.get_exit_code() == 0;
    if (read_environment().rank > 0) {
      if (!is_help) std::this_thread::sleep_for(cli::kForRoot);
      return is_help ? 0 : 2;
    }
    if (is_help) return app.exit(e);
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
