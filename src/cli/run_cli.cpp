// The command line: parses arguments into Arguments; prints errors as one line with an exit code.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <thread>

#include "base/env.h"
#include "base/fail.h"
#include "base/thrown.h"
#include "cli/completion_script.h"
#include "cli/excerpt.h"
#include "cli/flags.h"
#include "cli/say.h"
#include "cli/style.h"
#include "tessera/build_info.h"

namespace tessera {

namespace {

using cli::add_job;
using cli::add_json;
using cli::add_model;
using cli::Arguments;
using cli::finite_number;
using cli::whole_number;

void add_data(CLI::App* app, Arguments& a) {
  app->add_option("--data", a.data,
                  "File or folder of the data, or a blend: 0.7:a.idx,0.3:b.idx (data.path).")
      ->type_name("PATH");
}

void add_tokenizer(CLI::App* app, Arguments& a, bool required) {
  app->add_option("--tokenizer", a.tokenizer,
                  "Tokenizer: tokenizer.json, tekken.json, a SentencePiece model, a tiktoken file, "
                  "or a folder with one.")
      ->type_name("PATH")
      ->required(required);
  app->add_option("--tokenizer-pattern", a.pattern,
                  "How a tiktoken file cuts text: gpt2, cl100k, o200k, llama3, llama4, qwen, or a "
                  "regular expression.")
      ->type_name("PATTERN");
  app->add_option("--special-token", a.special,
                  "A further special token of a tiktoken file; may be repeated.")
      ->type_name("NAME")
      ->allow_extra_args(false)
      ->take_all();
}

void add_tokenize(const cli::AddCommand& add, Arguments& a) {
  CLI::App* tokenize =
      add("tokenize", "Turns text into a corpus of tokens, CORPUS.bin and CORPUS.idx, for train.",
          "tessera tokenize --tokenizer tokenizer.json a.jsonl b.jsonl --out corpus --append-eod",
          cli::by_one_process(a, [&] { return cli::tokenize(a); }));
  tokenize
      ->add_option("FILE", a.words,
                   "Files of text. Each line of FILE.jsonl is a document, any other file is one.")
      ->required();
  add_tokenizer(tokenize, a, true);
  tokenize
      ->add_option("--out", a.out,
                   "Name of the corpus. The same command continues one that was stopped.")
      ->type_name("CORPUS")
      ->required();
  tokenize
      ->add_option("--documents", a.documents,
                   "What is a document: a line (jsonl), a whole file (file), or text up to a blank "
                   "line (blank-lines).")
      ->type_name("KIND");
  tokenize->add_option("--json-key", a.json_key, "Key of the text in a line of jsonl (text).")
      ->type_name("KEY");
  tokenize->add_flag("--append-eod", a.append_eod,
                     "Ends every document with the tokenizer's token for the end of a text.");
  tokenize->add_flag("--add-special", a.add_special,
                     "Adds the tokens that the tokenizer puts around a text.");
  tokenize->add_flag(
      "--special-in-text", a.special_in_text,
      "Text that is written like a special token, such as <|endoftext|>, becomes it. "
      "Without, it is text.");
  tokenize->add_flag("--skip-empty", a.skip_empty, "Leaves out documents without text or tokens.");
  tokenize->add_option("--threads", a.threads, "Number of threads (0: one for each core).")
      ->check(whole_number(0, cli::kMostThreads));
  add_json(tokenize, a);
}

/// Adds a flag that sets a configuration key.
void add_key(CLI::App* app, Arguments& a, const char* flag, const char* type, const char* name,
             const char* help) {
  app->add_option_function<std::string>(
         flag, [&a, name](const std::string& v) { a.sets.push_back(std::string(name) + "=" + v); },
         help)
      ->type_name(type);
}

void add_init(CLI::App* app, Arguments& a) {
  app->add_option("--init", a.init,
                  "What a folder's model starts from: its weights (default), or random values.")
      ->type_name("weights|random");
}

void add_training(CLI::App* app, Arguments& a) {
  add_key(app, a, "--steps", "N", "train.steps", "Number of steps to train.");
  add_batch(app, a);
  add_key(app, a, "--dtype", "DTYPE", "train.dtype",
          "Dtype of activations: float32, bfloat16, float16, float64 or float8.");
  add_key(app, a, "--overlap", "on|off", "train.overlap",
          "Whether communication overlaps compute (on). With off a rank waits for every collective "
          "where it starts.");
  add_key(
      app, a, "--chunks", "N|auto", "train.chunks",
      "Number of chunks a matmul is split into so that its collective overlaps its compute, and "
      "of parts of a rank's tokens whose rows travel to experts in turn.");
  add_key(app, a, "--offload", "none|state", "train.offload",
          "Keeps optimizer state in host memory, with state.");
  add_key(app, a, "--seed", "N", "train.seed",
          "Seed of initial values, dropout and the order of data.");
  add_recompute(app, a);
}

void add_running(CLI::App* app, Arguments& a) {
  app->add_option("--tune", a.tune,
                  "Tries the K best plans of a layout with auto for a few steps each, and trains "
                  "with the fastest.")
      ->type_name("K");
  add_init(app, a);
  app->add_option("--log", a.log, "Writes JSON lines to FILE, one a step.")->type_name("FILE");
  app->add_flag("--quiet", a.quiet,
                "Prints only what goes wrong, what other flags ask for, and the summary.");
  app->add_option("--checkpoint", a.checkpoint, "Directory of checkpoints.")->type_name("DIR");
  app->add_option("--save-every", a.save_every,
                  "Number of steps between checkpoints. One is always written at the end.");
  app->add_option("--save-retry", a.save_retry,
                  "How long a job that ends tries a failed save again, in seconds (60). While it "
                  "trains it always does.")
      ->type_name("SECONDS");
  app->add_option("--keep", a.keep, "Number of checkpoints to keep (3).")
      ->check(whole_number(1, cli::kMostKept));
  app->add_flag("--keep-best", a.keep_best,
                "Also keeps the checkpoint with the lowest evaluation loss, in DIR/best.");
  app->add_option("--staging", a.staging,
                  "Most memory that a process takes to save while it trains, such as 4GB (1 GiB).")
      ->type_name("BYTES");
  app->add_flag("--resume", a.resume, "Continues from the last checkpoint.");
  app->add_flag("--allow-changes", a.allow_changes,
                "With --resume: continues although model, optimizer, batch, seed or data have "
                "changed.");
  app->add_option("--on-nonfinite", a.on_nonfinite,
                  "What happens at a step whose loss or gradient is not finite: stop (default), or "
                  "skip it and count.")
      ->type_name("stop|skip");
  app->add_option("--check-replicas", a.check_replicas,
                  "Number of steps between comparisons of the ranks' copies of parameters (0: "
                  "never; by default as many as keep their cost below 0.1 % of the time).")
      ->type_name("N");
  app->add_option("--csv", a.csv, "Writes the numbers of the log to FILE, as a table.")
      ->type_name("FILE");
  app->add_option("--tensorboard", a.tensorboard, "Folder of event files for TensorBoard.")
      ->type_name("DIR");
  app->add_flag(
      "--profile", a.profile,
      "Prints at the end time, memory, FLOP/s and bytes/s by op and source line, and what "
      "each collective exposed, beside what is predicted. If the machine is known (--machine), "
      "each "
      "kernel stands against its roofline, the one that loses most time first.");
  app->add_option("--watch", a.watch,
                  "Names of tensors (* and ?) whose range and norm are printed after each step.")
      ->type_name("GLOB")
      ->take_all();
  app->add_option("--dump", a.dump,
                  "Names of tensors (* and ?) that are written whole, one file a step.")
      ->type_name("GLOB")
      ->take_all();
  app->add_option("--dump-dir", a.dump_dir, "Folder that --dump writes to.")->type_name("DIR");
  app->add_option("--dump-every", a.dump_every, "Number of steps between dumps (1).");
  app->add_option("--trace", a.trace,
                  "Writes when each step ran on each rank to FILE, for Perfetto or "
                  "chrome://tracing.")
      ->type_name("FILE");
}

void add_export(const cli::AddCommand& add, Arguments& a) {
  CLI::App* command =
      add("export", "Writes a checkpoint of a folder's model as a folder of Hugging Face.",
          "tessera export --checkpoint out/run --like Llama-3.2-1B Llama-3.2-1B-tuned",
          cli::by_one_process(a, [&] { return cli::export_folder(a); }));
  add_words(command, a, {{"OUT", "Folder to write. It must not exist."}});
  command->add_option("--checkpoint", a.checkpoint, "A checkpoint, or a directory of several.")
      ->type_name("DIR")
      ->required();
  command
      ->add_option("--like", a.like,
                   "Folder of the model: names, dtypes and files of the tensors, config.json and "
                   "the tokenizer are taken from it.")
      ->type_name("DIR")
      ->required();
  command
      ->add_option("--shard-size", a.shard_size,
                   "Most bytes of a file, if --like has no weights (5GB).")
      ->type_name("BYTES");
  command->add_flag("--ema", a.average, "Writes the moving averages of train.ema.");
  command->add_flag("--adapter", a.adapter,
                    "Writes the matrices of LoRA as an adapter of PEFT. Without, they are merged "
                    "into the weights.");
}

void add_files(const cli::AddCommand& add, Arguments& a) {
  CLI::App* checkpoint =
      add("checkpoint", "Shows what a checkpoint holds, or verifies every byte of it.",
          "tessera checkpoint verify out/run\n  tessera checkpoint show out/run/step-00000200",
          cli::by_one_process(a, [&] { return cli::checkpoint(a); }));
  add_words(
      checkpoint, a,
      {{"show|verify", "What to do."}, {"DIR", "One checkpoint, or a directory of several."}});
  CLI::App* convert =
      add("convert", "Converts between a checkpoint and one safetensors file of whole tensors.",
          "tessera convert out/run model.safetensors --rename \"gpt.*=transformer.*\"\n"
          "  tessera convert model.safetensors out/from-elsewhere",
          cli::by_one_process(a, [&] { return cli::convert(a); }));
  add_words(convert, a,
            {{"FROM", "A checkpoint, or a file."},
             {"TO", "A file, or the directory of checkpoints to write to."}});
  convert
      ->add_option("--rename", a.renames,
                   "Renames the tensors that are called like OLD, with one * in both names.")
      ->type_name("OLD=NEW")
      ->take_all();
  convert->add_flag("--all", a.all, "Converts optimizer state too.");
  CLI::App* report = add("report", "Writes logs of train as one HTML page, which needs no network.",
                         "tessera report run.jsonl --out run.html\n"
                         "  tessera report warm.jsonl cold.jsonl --out both.html\n"
                         "  tessera report run.jsonl --follow",
                         cli::by_one_process(a, [&] { return cli::report(a); }));
  report->add_option("LOG", a.words, "Files that train --log wrote, to be compared on one page.")
      ->required();
  report
      ->add_option("--out", a.out,
                   "File of the page. The default is the first log's name with .html.")
      ->type_name("FILE");
  report->add_flag("--follow", a.follow,
                   "Writes the page again while the jobs go on, until they are finished, and waits "
                   "for logs that are not there yet. A browser shows it anew by itself.");
}

void add_dtype(CLI::App* app, Arguments& a) {
  add_key(app, a, "--dtype", "DTYPE", "train.dtype",
          "Dtype of activations: float32, float64, bfloat16, float16 or float8.");
}

void add_checks(const cli::AddCommand& add, Arguments& a, const std::vector<ModelSpec>& models) {
  CLI::App* explain = add(
      "explain",
      "Explains a layout without running it: every collective and why it is there, memory, and "
      "redundant compute.",
      "tessera explain gpt --mesh \"data:4;model:8\" --layout \"batch:data;heads,ff,vocab:model\"",
      cli::by_one_process(a, [&] { return cli::explain(a, models); }));
  add_model(explain, a);
  add_batch(explain, a);
  add_recompute(explain, a);
  add_json(explain, a);
  explain
      ->add_option("--print-after", a.print_after,
                   "Prints the model after a pass: partition, insert_padding_masks, "
                   "deal_layers, pipeline_microbatches, localize, reduce_rows_first (on a CPU), "
                   "keep_products, fuse_pointwise, "
                   "fuse_epilogues, fuse_prologues, recompute_rows and dots_in_attention "
                   "(these three on a GPU), "
                   "bucket_collectives, schedule, collective_matmul, group_tensors, "
                   "sums_in_products, merge_reductions, sums_in_rows, add_products and "
                   "batch_products (on a GPU), await_late or plan_memory.")
      ->type_name("PASS");
  explain
      ->add_option("--show", a.show,
                   "Sketches how the tensors of these names are cut over the mesh, instead of "
                   "the report: --show \"*.block0.mlp.*\".")
      ->type_name("GLOB");
  add_html(explain, a);
  explain->add_flag("--kernels", a.kernels,
                    "Prints every kernel of a step with its flops, bytes and predicted time "
                    "beside the roofline of --machine.");
  CLI::App* verify = add("verify", "Trains under every legal layout and compares with one rank.",
                         "tessera verify gpt --mesh \"a:2;b:2;c:2\" --steps 20 --dtype float64",
                         [&] { return cli::verify(a, models); });
  add_model(verify, a);
  add_batch(verify, a);
  add_recompute(verify, a);
  verify
      ->add_option("--layouts", a.layouts,
                   "Layouts to verify: all (the legal ones, and those that the model's "
                   "documentation names), documented (only the latter), or a file with one layout "
                   "a line.")
      ->type_name("all|documented|FILE");
  verify->add_option("--steps", a.steps, "Number of training steps (3).")->check(whole_number(1));
  verify
      ->add_option("--tolerance", a.tolerance,
                   "Largest relative difference (1e-10 in float64, 1e-5 in float32, 16 units of "
                   "rounding in 16 bits, 0.25 in float8).")
      ->check(finite_number(0));
  add_dtype(verify, a);
  add_init(verify, a);
  add_html(verify, a);
  add_json(verify, a);
}

void add_compare(const cli::AddCommand& add, Arguments& a, const std::vector<ModelSpec>& models) {
  CLI::App* compare = add(
      "compare", "Finds the first node whose value differs between two layouts or two dumps.",
      "tessera compare gpt \"batch:rows\" \"batch:rows;heads,ff:cols\" --mesh \"rows:2;cols:2\"\n"
      "  tessera compare gpt \"\" \"batch:rows\" --mesh rows:4     # \"\": nothing is split\n"
      "  tessera compare dumps-of-one-build dumps-of-another",
      [&] { return cli::compare(a, models); });
  add_words(compare, a,
            {{"MODEL", "Name of a model; or a file or folder that train --dump wrote."},
             {"A", "A layout; or another such file or folder."},
             {"B", "The layout to compare it with, after a model.", false}});
  add_job(compare, a);
  compare->add_option("--steps", a.steps, "Number of training steps (1).")->check(whole_number(1));
  compare
      ->add_option("--tolerance", a.tolerance,
                   "Largest relative difference (1e-10 in float64, 1e-4 in float32, 6e-2 in "
                   "16 bits and ten times that from the first update on, else 0).")
      ->check(finite_number(0));
  add_dtype(compare, a);
  add_json(compare, a);
}

void add_bench(const cli::AddCommand& add, Arguments& a, const std::vector<ModelSpec>& models) {
  CLI::App* bench =
      add("bench", "Measures a matmul, a collective or a training step: times and rates.",
          "tessera bench all_reduce --mesh data:2 --size 1024 1048576\n"
          "  mpirun -n 2 tessera bench matmul --size 2048 --threads 1 --layout depth:ranks\n"
          "  tessera bench train gpt --mesh data:2 --set layers=2",
          [&] { return cli::bench(a, models); });
  add_words(bench, a,
            {{"WHAT",
              "What to measure: matmul, all_reduce, all_gather, reduce_scatter, all_to_all or "
              "train."},
             {"MODEL", "Model of train (gpt), with its dims in --set.", false}});
  add_job(bench, a);
  bench
      ->add_option("--layout", a.layout,
                   "Layout of train, or of matmul over the dims rows, depth and cols (rows split).")
      ->transform(cli::written_layout())
      ->type_name("RULES");
  bench->add_option("--size", a.sizes,
                    "Rows, columns and depth of a matmul (1024), or elements of a collective "
                    "(1048576).");
  bench->add_option("--steps", a.steps, "Number of runs to take the median of, after three (20).")
      ->check(whole_number(1));
  bench
      ->add_option("--dtype", a.dtype,
                   "Dtype of a matmul or collective: float32, float64, bfloat16 or float16. For "
                   "train, use --set dtype=.")
      ->type_name("DTYPE");
  add_json(bench, a);
}

/// A one-line message, with the nearest flag or command if one is unknown.
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
  if (!unknown.empty() && at->get_name() == "simulate" && unknown[0].starts_with("--runs")) {
    text = "'simulate --runs FILE' is the program 'bench_published_runs FILE' now";
  } else if (!unknown.empty()) {
    text = fmt::format("unknown {} '{}'{}", at == &app ? "command" : "argument", unknown[0],
                       suggestion(unknown[0], known));
  }
  return fmt::format("{}; see 'tessera {}--help'", text, at == &app ? "" : at->get_name() + " ");
}

constexpr int64_t kMostRows = 65536, kMostNewTokens = 100'000'000;

/// How new tokens are chosen, and `tokens` of them at most by default.
void add_sampling(CLI::App* app, Arguments& a, const char* tokens) {
  app->add_option("--tokens", a.tokens,
                  fmt::format("Most tokens to write ({}). With a tokenizer its end-of-text token "
                              "ends the text.",
                              tokens))
      ->check(whole_number(0, kMostNewTokens));
  app->add_option("--temperature", a.sampling.temperature,
                  "Temperature of sampling (0.8). 0 takes the likeliest token.")
      ->check(finite_number(0));
  app->add_option("--top-k", a.sampling.top_k,
                  "Samples from so many likeliest tokens only (0: from all).")
      ->check(whole_number(0));
  app->add_option("--top-p", a.sampling.top_p,
                  "Samples from the fewest likeliest tokens that have this probability together "
                  "(1).");
  app->add_option("--min-p", a.sampling.min_p,
                  "Samples from tokens with at least this share of the likeliest one's probability "
                  "(0).");
  app->add_option("--repetition-penalty", a.sampling.repetition_penalty,
                  "Makes tokens less likely that the text has already, if above 1 (1).");
}

/// What writes texts: a model, its parameters, its tokenizer and the rows of a batch.
void add_writer(CLI::App* app, Arguments& a) {
  add_model(app, a);
  app->add_option(
         "--checkpoint", a.checkpoint,
         "Directory of checkpoints. Without it the weights of a folder write, with its tokenizer.")
      ->type_name("DIR");
  add_tokenizer(app, a, false);
  app->add_option("--rows", a.rows, "Texts that are written at a time (8).")
      ->check(whole_number(1, kMostRows));
}

/// Adds the commands that run a model.
void add_models(const cli::AddCommand& add, Arguments& a, const std::vector<ModelSpec>& models) {
  CLI::App* info = add("info", "Prints what this build and machine have.",
                       "tessera info\n  tessera info --keys", [&] { return cli::info(a, models); });
  info->add_option("--mesh", a.mesh, "Prints which ranks each axis groups.")->type_name("AXES");
  info->add_flag("--keys", a.keys,
                 "Prints every configuration key of every model, with its default, its values and "
                 "its meaning.");
  add_json(info, a);
  CLI::App* train = add("train", "Trains a model.",
                        "tessera train gpt --data data/moby-dick.txt --mesh \"data:2;model:2\" \\\n"
                        "    --layout \"batch:data;heads,ff,vocab:model\" --steps 200",
                        [&] { return cli::train(a, models); });
  add_model(train, a);
  add_data(train, a);
  add_training(train, a);
  add_running(train, a);
  train
      ->add_option("--sample-every", a.sample_every,
                   "Writes a text after every so many steps, and after the last (0: none). It goes "
                   "to the log, TensorBoard and the report.")
      ->check(whole_number(0));
  train
      ->add_option("--sample-prompt", a.prompts,
                   "Text that a sample continues. May be given several times.")
      ->type_name("TEXT")
      ->allow_extra_args(false)
      ->take_all();
  add_sampling(train, a, "64");
  add_tokenizer(train, a, false);
  add_json(train, a);
  cli::group_options(train);
  CLI::App* eval = add("eval", "Prints the loss of a checkpoint on held-out data.",
                       "tessera eval gpt --data data/moby-dick.txt --checkpoint out/run",
                       [&] { return cli::eval(a, models); });
  add_model(eval, a);
  add_data(eval, a);
  eval->add_option("--checkpoint", a.checkpoint,
                   "Directory of checkpoints. Without it the weights of a folder are evaluated.")
      ->type_name("DIR");
  eval->add_flag("--ema", a.average, "Evaluates the moving averages of train.ema.");
  add_json(eval, a);
  CLI::App* generate =
      add("generate", "Writes text from a checkpoint, or from a folder of Hugging Face.",
          "tessera generate gpt --checkpoint out/run --prompt \"The whale\"",
          [&] { return cli::generate(a, models); });
  add_writer(generate, a);
  generate
      ->add_option("--prompt", a.prompts,
                   "Text that the model continues. Several are continued together.")
      ->allow_extra_args(false)
      ->take_all();
  add_sampling(generate, a, "200");
  generate
      ->add_option("--stop", a.stops,
                   "Text at which to stop, and which is left out. May be given several times.")
      ->type_name("TEXT")
      ->allow_extra_args(false)
      ->take_all();
  generate->add_option("--samples", a.samples, "Number of texts for each prompt (1).")
      ->check(whole_number(1, kMostRows));
  generate->add_flag("--no-cache", a.no_cache,
                     "Keeps no keys and values: reads the whole text again for every token, as "
                     "texts that outgrow the model's length always are.");
  generate
      ->add_option("--beams", a.beams,
                   "Writes the likeliest text that a beam search with so many beams finds, instead "
                   "of choosing tokens one by one; with --samples the best ones.")
      ->check(whole_number(1, kMostRows));
  generate->add_option("--length-penalty", a.length_penalty,
                       "With --beams: the score of a text of n tokens is its log-probability / "
                       "n^X (1). Above 0 it prefers long texts.");
  generate->add_flag(
      "--early-stopping", a.early_stopping,
      "With --beams: ends the search once as many texts have ended as there are beams.");
  add_json(generate, a);
  CLI::App* serve =
      add("serve", "Answers requests for completions over HTTP, as an OpenAI-compatible server.",
          "tessera serve gpt --checkpoint out/run\n"
          "  curl localhost:8000/v1/completions -d '{\"prompt\": \"Call me\", \"max_tokens\": 8}'",
          [&] { return cli::serve(a, models); });
  add_writer(serve, a);
  serve
      ->add_option("--host", a.host,
                   "Address to listen on (127.0.0.1, which other machines cannot reach).")
      ->type_name("ADDRESS");
  serve->add_option("--port", a.port, "Port to listen on (8000). 0: a free one, which is printed.")
      ->check(whole_number(0, 65535));
  serve
      ->add_option("--most-tokens", a.most_tokens,
                   "Most tokens of a request, prompts and new ones together (65536).")
      ->check(whole_number(1));
}

}  // namespace

namespace cli {
std::vector<Command> add_commands(CLI::App& app, Arguments& a,
                                  const std::vector<ModelSpec>& models) {
  std::vector<Command> commands;
  app.set_help_flag("-h,--help", "Prints this help and exits.");
  app.set_version_flag("--version", "tessera " + build_info().version,
                       "Prints the version and exits.");
  app.require_subcommand(1);
  app.footer(
      "Example:\n"
      "  tessera train gpt --data FILE.txt --mesh data:4 --log run.jsonl\n"
      "  tessera train --help");
  const AddCommand add = [&](const char* name, const char* help, const char* example,
                             std::function<int()> run) {
    CLI::App* sub = app.add_subcommand(name, help);
    sub->footer(std::string("Example:\n  ") + example);
    commands.push_back({sub, std::move(run)});
    return sub;
  };
  add_models(add, a, models);
  add_tokenize(add, a);
  add_files(add, a);
  add_export(add, a);
  add_checks(add, a, models);
  add_compare(add, a, models);
  add_bench(add, a, models);
  add_planning(add, a, models);
  CLI::App* completion = add("completion", "Prints a script that completes commands and options.",
                             "source <(tessera completion bash)     # in ~/.bashrc; zsh: the same\n"
                             "  tessera completion fish | source",
                             by_one_process(a, [&] {
                               std::vector<std::string> names;
                               for (const ModelSpec& model : models) names.push_back(model.name);
                               const std::string script = completion_script(a.words[0], app, names);
                               std::fwrite(script.data(), 1, script.size(), stdout);
                               return 0;
                             }));
  add_words(completion, a, {{"bash|zsh|fish", "The shell."}});
  return commands;
}
}  // namespace cli

namespace {
/// On a terminal: where the culprit of an error stands in the command line or in a file.
void point_at(const std::string& message, int argc, char** argv) {
  if (!isatty(STDERR_FILENO) || read_environment().rank > 0) return;
  const std::string text = cli::excerpt(message, {argv + 1, argv + argc});
  std::fputs(cli::styled(text, cli::Colour::faint, cli::is_coloured(STDERR_FILENO)).c_str(),
             stderr);
}

/// After a failure of ranks or devices the process ends here: threads that hang, or wait for peers
/// that are gone, would keep it from returning through main().
int end_after(ErrorKind kind, int code) {
  if (kind != ErrorKind::comm && kind != ErrorKind::device) return code;
  std::fflush(stdout);
  _exit(code);
}
}  // namespace

int run_cli(int argc, char** argv, const std::vector<ModelSpec>& own) {
  Arguments args;
  std::vector<ModelSpec> models = own;
  models.insert(models.end(), builtin_models().begin(), builtin_models().end());
  if (argc > 0) args.program = std::filesystem::path(argv[0]).filename();
  CLI::App app("Trains models with named dimensions, in any layout over any mesh.", "tessera");
  const std::vector<cli::Command> commands = cli::add_commands(app, args, models);
  if (argc <= 1) {
    if (read_environment().rank <= 0) cli::write_safely(stdout, app.help());
    return 0;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const bool is_help = e.get_exit_code() == 0;
    const int rank = read_environment().rank;
    if (is_help) {
      std::ostringstream help;
      const int code = app.exit(e, help, help);
      if (rank <= 0) cli::write_safely(stdout, help.str());
      return code;
    }
    const std::string message = command_line_error(app, e);
    cli::report_error(ErrorKind::usage, message.c_str(), false);
    point_at(message, argc, argv);
    return 2;
  }
  try {
    for (const cli::Command& command : commands) {
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
    return end_after(e.kind(), cli::report_error(e.kind(), e.what(), true));
  } catch (const CommonFailure& e) {
    if (read_environment().rank <= 0) {
      const int code = cli::report_error(e.kind(), e.what(), false);
      point_at(e.what(), argc, argv);
      return code;
    }
    std::this_thread::sleep_for(cli::kForRoot / 10);
    return 1;
  } catch (const Error& e) {
    const int code = cli::report_error(e.kind(), e.what(), false);
    point_at(e.what(), argc, argv);
    return end_after(e.kind(), code);
  } catch (...) {
    return cli::report_error(ErrorKind::internal, thrown_text().c_str(), false);
  }
  return 2;
}

}  // namespace tessera
