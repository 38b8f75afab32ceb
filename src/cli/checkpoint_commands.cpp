// checkpoint and convert: commands on files, which need no ranks.

#include "base/fail.h"
#include "base/files.h"
#include "cli/build_model.h"
#include "cli/commands.h"
#include "cli/terminal.h"
#include "cli/transformer_keys.h"
#include "tessera/model_folder.h"
#include "tessera/pytorch_model.h"

namespace tessera::cli {

namespace {

struct CheckpointFlags : Invocation {
  std::string what, path;
  void declare(FlagTable& table) {
    table.add(
        {{"show|verify", &what, kOneProcess, "What to do.", {}, true},
         {"DIR", &path, kOneProcess, "One checkpoint, or a directory of several.", {}, true}});
  }
};

struct ConvertFlags : Invocation {
  std::string from, to;
  std::vector<std::string> renames;  ///< OLD=NEW
  bool all = false;
  void declare(FlagTable& table) {
    table.add(
        {{"FROM", &from, kOneProcess, "A checkpoint, or a file.", {}, true},
         {"TO", &to, kOneProcess, "A file, or the directory of checkpoints to write to.", {}, true},
         {"--rename OLD=NEW", &renames, kOneProcess,
          "Renames the tensors that are called like OLD, with one * in both names."},
         {"--all", &all, kOneProcess, "Converts optimizer state too."}});
  }
};

struct ExportFlags : Invocation {
  std::string to, checkpoint, like, shard_size;
  bool average = false, adapter = false;
  void declare(FlagTable& table) {
    table.add({{"OUT",
                &to,
                kOneProcess,
                "Folder to write, or of a program the safetensors file of its state_dict. It must "
                "not exist.",
                {},
                true},
               {"--checkpoint DIR",
                &checkpoint,
                kOneProcess,
                "A checkpoint, or a directory of several.",
                {},
                true},
               {"--like DIR",
                &like,
                kOneProcess,
                "Folder of the model: names, dtypes and files of the tensors, config.json and the "
                "tokenizer are taken from it. Or the program of PyTorch, FILE.pt2.",
                {},
                true},
               {"--shard-size BYTES", &shard_size, kOneProcess,
                "Most bytes of a file, if --like has no weights (5GB)."},
               {"--ema", &average, kOneProcess, "Writes the moving averages of train.ema."},
               {"--adapter", &adapter, kOneProcess,
                "Writes the matrices of LoRA as an adapter of PEFT. Without, they are merged into "
                "the weights."}});
  }
};

/// Parses a list of "OLD=NEW".
std::vector<std::pair<std::string, std::string>> rules_of(const std::vector<std::string>& texts) {
  std::vector<std::pair<std::string, std::string>> rules;
  for (const std::string& text : texts) {
    const size_t at = text.find('=');
    TESSERA_REQUIRE(at != std::string::npos, "--rename '{}' is not OLD=NEW", text);
    rules.emplace_back(text.substr(0, at), text.substr(at + 1));
  }
  return rules;
}

/// The checkpoint at `path`, or the newest one in the directory `path`.
std::string checkpoint_in(const std::string& path) {
  const std::optional<Checkpoint> latest = find_latest(path);
  TESSERA_REQUIRE(latest.has_value(), "'{}' holds no checkpoint", path);
  return latest->path;
}

/// How the checkpoint to export was adapted, as its configuration says. Throws a usage error if
/// that is of another config.json.
nn::LoraOptions stored_lora(const ExportFlags& args) {
  const std::shared_ptr<const ModelSpec> spec = folder_model(args.like);
  const std::optional<Checkpoint> latest = find_latest(args.checkpoint);
  if (!latest || !latest->metadata.contains("config")) return {};
  Config stored = default_config(*spec);
  try {
    stored.load_stored(latest->metadata.at("config"), latest->path);
  } catch (const Error&) {
    return {};  // of another model, which export_model() tells better
  }
  // The weights of such a model may have the same sizes.
  const std::string &was = stored.text("model.config"),
                    is = default_config(*spec).text("model.config");
  TESSERA_REQUIRE(
      was == is,
      "[export] '{}' is not a checkpoint of the model of '{}': their config.json have the hashes "
      "{} and {}; give the folder that it was trained from",
      latest->path, args.like, was, is);
  return lora_of(stored);
}

int run_checkpoint(const CheckpointFlags& args, const std::vector<ModelSpec>&) {
  const std::string &what = args.what, &path = args.path;
  TESSERA_REQUIRE(what == "show" || what == "verify", "checkpoint '{}': it is show or verify",
                  what);
  if (!is_folder(path)) {
    say("{}", what == "show" ? describe_checkpoint(path)
                             : fmt::format("{}: {}\n", path, verify_checkpoint(path)));
    return 0;
  }
  const std::vector<std::string> all = checkpoint_paths(path);
  TESSERA_REQUIRE(!all.empty(), "'{}' holds no checkpoint", path);
  std::vector<std::string> bad;
  for (const std::string& c : all) {
    try {
      say("{}", what == "show" ? describe_checkpoint(c)
                               : fmt::format("{}: {}\n", c, verify_checkpoint(c)));
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::io) throw;
      bad.push_back(e.what());
      say("{}: DAMAGED\n", c);
    }
  }
  if (!bad.empty())
    fail(ErrorKind::io, "{} of {} checkpoints cannot be read in full: {}", bad.size(), all.size(),
         fmt::join(bad, "; "));
  return 0;
}

int run_export(const ExportFlags& args, const std::vector<ModelSpec>&) {
  if (PytorchModel::is_one(args.like)) {
    TESSERA_REQUIRE(
        !args.average && !args.adapter && args.shard_size.empty(),
        "--ema, --adapter and --shard-size are for a folder; --like '{}' is a program of PyTorch",
        args.like);
    const std::string checkpoint = checkpoint_in(args.checkpoint);
    const int64_t tensors = PytorchModel(args.like).export_weights(checkpoint, args.to);
    say("{} tensors from {} to {}\n", tensors, checkpoint, args.to);
    return 0;
  }
  const ModelFolder like(args.like);
  ExportOptions options;
  if (!args.shard_size.empty()) options.shard_bytes = parse_bytes("--shard-size", args.shard_size);
  options.average = args.average;
  options.adapter = args.adapter;
  options.lora = stored_lora(args);
  const int64_t tensors = export_model(args.checkpoint, like, args.to, options);
  say("{} tensors from {} to {}\n", tensors, args.checkpoint, args.to);
  return 0;
}

int run_convert(const ConvertFlags& args, const std::vector<ModelSpec>&) {
  const std::string &from = args.from, &to = args.to;
  if (!is_there(from))
    fail(ErrorKind::io, "'{}' does not exist; give a checkpoint or a safetensors file", from);
  const std::string source = is_folder(from) ? checkpoint_in(from) : from;
  const int64_t tensors = convert_checkpoint(source, to, {args.all, rules_of(args.renames)});
  say("{} tensors from {} to {}\n", tensors, source, to);
  return 0;
}

}  // namespace

Command checkpoint_command() {
  return command(
      "checkpoint", "Shows what a checkpoint holds, or verifies every byte of it.",
      "tessera checkpoint verify out/run\n  tessera checkpoint show out/run/step-00000200",
      Processes::first, run_checkpoint);
}

Command convert_command() {
  return command("convert",
                 "Converts between a checkpoint and one safetensors file of whole tensors.",
                 "tessera convert out/run model.safetensors --rename \"gpt.*=transformer.*\"\n"
                 "  tessera convert model.safetensors out/from-elsewhere",
                 Processes::first, run_convert);
}

Command export_command() {
  return command("export", "Writes a checkpoint of a folder's model as a folder of Hugging Face.",
                 "tessera export --checkpoint out/run --like Llama-3.2-1B Llama-3.2-1B-tuned",
                 Processes::first, run_export);
}

}  // namespace tessera::cli
