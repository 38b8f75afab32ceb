// checkpoint and convert: commands on files, which need no ranks.
#include <filesystem>

#include "base/fail.h"
#include "cli/commands.h"
#include "cli/folder_model.h"
#include "cli/say.h"
#include "cli/transformer_keys.h"
#include "tessera/model_folder.h"

namespace tessera::cli {

namespace {

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
nn::LoraOptions stored_lora(const Arguments& args) {
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

}  // namespace

int checkpoint(const Arguments& args) {
  const std::string &what = args.words[0], &path = args.words[1];
  TESSERA_REQUIRE(what == "show" || what == "verify", "checkpoint '{}': it is show or verify",
                  what);
  if (!std::filesystem::is_directory(path)) {
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

int export_folder(const Arguments& args) {
  const std::string& to = args.words[0];
  const ModelFolder like(args.like);
  ExportOptions options;
  if (!args.shard_size.empty()) options.shard_bytes = parse_bytes("--shard-size", args.shard_size);
  options.average = args.average;
  options.adapter = args.adapter;
  options.lora = stored_lora(args);
  const int64_t tensors = export_model(args.checkpoint, like, to, options);
  say("{} tensors from {} to {}\n", tensors, args.checkpoint, to);
  return 0;
}

int convert(const Arguments& args) {
  const std::string &from = args.words[0], &to = args.words[1];
  if (!std::filesystem::exists(from))
    fail(ErrorKind::io, "'{}' does not exist; give a checkpoint or a safetensors file", from);
  const std::string source = std::filesystem::is_directory(from) ? checkpoint_in(from) : from;
  const int64_t tensors = convert_checkpoint(source, to, {args.all, rules_of(args.renames)});
  say("{} tensors from {} to {}\n", tensors, source, to);
  return 0;
}

}  // namespace tessera::cli
