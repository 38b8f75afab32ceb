#include <algorithm>

#include "base/fail.h"
#include "base/files.h"
#include "cli/build_model.h"
#include "cli/transformer_keys.h"
#include "tessera/model_folder.h"
#include "tessera/session.h"

namespace tessera::cli {

namespace {

constexpr int64_t kUsualLength = 1024;  ///< a model's longest text is more than most data have
constexpr double kAnyLength = 1e7;      ///< where no positions are stored

/// The feed-forward layers that some blocks have.
std::vector<nn::MlpLayerOptions*> mlps_of(nn::TransformerOptions& o) {
  std::vector<nn::MlpLayerOptions*> all = {&o.mlp};
  for (nn::SpanOptions& span : o.spans) {
    if (span.mlp) all.push_back(&*span.mlp);
  }
  return all;
}

bool has_experts(nn::TransformerOptions o) {
  const std::vector<nn::MlpLayerOptions*> all = mlps_of(o);
  return std::any_of(all.begin(), all.end(), [](const auto* mlp) { return mlp->experts > 0; });
}

bool reads_images(const ModelFolder& folder) { return folder.options().image.classes > 0; }

std::vector<ConfigKey> keys_of(const ModelFolder& folder) {
  const nn::TransformerOptions& o = folder.options();
  std::vector<ConfigKey> keys = {
      {"model.length", fmt::format("{}", std::min(o.length, kUsualLength)),
       o.encoder_layers > 0 ? "Most tokens that the encoder reads of an example."
                            : "Number of tokens in an example.",
       KeyRange::whole(1, o.encoder_layers > 0 ? kAnyLength : static_cast<double>(o.length))},
      {"model.init", "weights",
       "What training starts from: the weights of the folder, or random initial values.",
       KeyRange::one_of({"weights", "random"})},
      {"model.scan", o.scan ? "true" : "false",
       "Whether blocks that are alike and follow one another are a loop, of which one is compiled.",
       KeyRange::one_of({"false", "true"})},
      loss_blocks_key(),
      {"model.dropout", "0", "Rate of dropout, below 1.", KeyRange::number(0, 1)},
      {"model.config", folder.config_hash(), "Hash of config.json, to tell models apart."}};
  if (reads_images(folder)) {
    std::erase_if(keys, [](const ConfigKey& key) {
      return key.name == "model.length" || key.name == "model.loss_blocks";
    });
  }
  if (has_experts(o)) {
    keys.push_back({"model.dispatch_capacity", "2",
                    "Where rows travel to the ranks of their experts, how many a rank has places "
                    "for from each rank, as a multiple of the mean. A step that has more is "
                    "repeated with four times as many places; with 0 there are places for all.",
                    KeyRange::number(0)});
  }
  for (ConfigKey& key : lora_keys()) keys.push_back(std::move(key));
  if (reads_images(folder)) return keys;
  for (ConfigKey& key : denoising_keys(o)) keys.push_back(std::move(key));
  return keys;
}

nn::TransformerOptions options_of(const ModelFolder& folder, const Config& c) {
  TESSERA_REQUIRE(
      c.text("model.config") == folder.config_hash(),
      "'{}' is another model than the one of the checkpoint: their config.json have the hashes "
      "{} and {}",
      folder.path(), folder.config_hash(), c.text("model.config"));
  nn::TransformerOptions o = folder.options();
  if (!reads_images(folder)) {
    o.length = c.integer("model.length");
    o.packed = is_packed(c);
    o.loss_blocks = c.integer("model.loss_blocks");
  }
  if (o.encoder_layers > 0 && is_of_samples(c)) {
    o.target_length = c.integer("data.answer_length");
  } else if (o.encoder_layers > 0) {
    TESSERA_REQUIRE(
        !o.packed,
        "data.packed is for models without an encoder; '{}' has one, and packs FILE.jsonl only",
        folder.path());
    const CorruptedLengths lengths = corrupted_lengths(o, c);
    o.length = lengths.inputs, o.target_length = lengths.targets;
  }
  o.scan = c.flag("model.scan");
  if (has_experts(o)) {
    for (nn::MlpLayerOptions* mlp : mlps_of(o))
      mlp->dispatch_capacity = c.number("model.dispatch_capacity");
  }
  o.lora = lora_of(c);
  o.float8 = c.text("train.dtype") == "float8";
  o.dtype = activations_of(c);
  return o;
}

/// Tokens in files have the width that the vocabulary needs.
int token_bytes(int64_t vocabulary) { return vocabulary <= 256 ? 1 : vocabulary <= 65536 ? 2 : 4; }

std::unique_ptr<DataSource> tokens_of(const ModelFolder& folder, const Config& c, bool held_out) {
  if (folder.options().encoder_layers > 0) {
    const nn::TransformerOptions model = options_of(folder, c);
    if (is_of_samples(c)) return open_pairs(c, held_out, model, folder.path());
  }
  TextOptions o;
  o.length = c.integer("model.length");
  if (folder.options().encoder_layers > 0) o.length = corrupted_lengths(folder.options(), c).text;
  o.vocabulary = folder.options().vocab;
  o.token_bytes = token_bytes(o.vocabulary);
  return to_repair(open_tokens(c, held_out, o, folder.path()), folder, c, held_out);
}

std::unique_ptr<DataSource> images_of(const ModelFolder& folder, const Config& c, bool held_out) {
  std::unique_ptr<DataSource> images = open_images(c, held_out);
  const nn::ImageOptions& image = folder.options().image;
  std::vector<int64_t> sizes = {image.channels, image.rows, image.cols}, found;
  if (image.channels == 1) sizes.erase(sizes.begin());
  for (const Dim& d : images->fields()[0].dims) found.push_back(d.size);
  TESSERA_REQUIRE(
      found == sizes,
      "the images in '{}' are {}, and '{}' reads {} (channels, rows, columns); write them in "
      "that size, images with channels as IDX files of four dims",
      c.text("data.path"), fmt::join(found, " x "), folder.path(), fmt::join(sizes, " x "));
  return images;
}

void start(const ModelFolder& folder, Session& session, const Config& c) {
  if (c.text("model.init") == "random") return;
  TESSERA_REQUIRE(
      folder.has_weights(),
      "'{}' holds no weights, neither model.safetensors nor its index; --init random starts "
      "with random ones",
      folder.path());
  session.cluster().require_same({{"the weights", folder.weights_hash()}});
  folder.load(session, options_of(folder, c));
}

}  // namespace

bool is_folder_model(const std::string& model) {
  if (!is_folder(model)) return false;
  TESSERA_REQUIRE(
      ModelFolder::is_one(model),
      "'{}' is a folder without config.json; a model is a name, a TOML file or a folder of "
      "Hugging Face",
      model);
  return true;
}

std::shared_ptr<const ModelSpec> folder_model(const std::string& path) {
  const auto folder = std::make_shared<const ModelFolder>(path);
  ModelSpec spec;
  spec.name = folder->family();
  spec.help = fmt::format("The model in {}.", path);
  spec.keys = keys_of(*folder);
  spec.build = [folder](Graph& g, const Config& c, int64_t batch, bool partial) {
    nn::TransformerOptions o = options_of(*folder, c);
    o.batch = batch;
    o.partial_batch = partial;
    o.dropout = partial ? 0 : c.number("model.dropout");
    if (partial) o.lora.dropout = 0;
    return nn::transformer(g, o);
  };
  spec.loop_key = "model.scan";
  spec.start = [folder](Session& session, const Config& c) { start(*folder, session, c); };
  if (reads_images(*folder)) {
    spec.data = [folder](const Config& c, bool held_out) {
      return images_of(*folder, c, held_out);
    };
    spec.tiny = {{"train.batch", "4"}};
    spec.layout = "batch:data;heads,ff:model";
    return std::make_shared<const ModelSpec>(std::move(spec));
  }
  spec.transformer = [folder](const Config& c) { return options_of(*folder, c); };
  spec.data = [folder](const Config& c, bool held_out) { return tokens_of(*folder, c, held_out); };
  spec.tokens = [folder](const Config& c) {
    const nn::TransformerOptions o = options_of(*folder, c);
    return o.encoder_layers > 0 ? o.length + o.target_length : o.length;
  };
  spec.tiny = {{"model.length", fmt::format("{}", std::min<int64_t>(folder->options().length, 16))},
               {"train.batch", "4"}};
  spec.layout = "batch:data;heads,ff,vocab:model";
  return std::make_shared<const ModelSpec>(std::move(spec));
}

}  // namespace tessera::cli
