// Models of Hugging Face: a folder with config.json and weights as safetensors, in one file or in
// several with an index. What a family's configuration and its tensors mean is a table; Tessera
// knows llama, mistral, qwen2, qwen3, gpt2, gemma2, gemma3_text, mixtral, qwen3_moe, deepseek_v3,
// t5, bert and vit; of other families, the folder holds the table: family.toml.
//
// Nothing is guessed. A key of config.json that may change numbers and is not known is an error, as
// are an unknown kind of rotary positions, and missing, additional or misshapen tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/nn_transformer.h"
#include "tessera/session.h"

namespace tessera {

struct ModelDescription;
struct ExportOptions;

class ModelFolder {
 public:
  static constexpr int64_t kShardBytes = 5'000'000'000;

  /// Whether `path` is a folder that has a config.json. Local.
  static bool is_one(const std::string& path);

  /// Reads config.json, not the weights. Local. Throws io errors that name file, key and value: a
  /// family, key or value that is not known, or no JSON; an unsupported error for an adapter of
  /// PEFT in the same folder.
  explicit ModelFolder(const std::string& path);
  ~ModelFolder();
  ModelFolder(ModelFolder&&) noexcept;

  const std::string& path() const;
  /// The value of model_type: "llama".
  const std::string& family() const;
  /// The model. `length` is max_position_embeddings; batch, dtype and scan are defaults that the
  /// caller may change, as packed and lora, and length may be shortened.
  const nn::TransformerOptions& options() const;
  /// A hash of what config.json says of the model: of keys that are not ignored.
  const std::string& config_hash() const;

  /// Whether there are weights. Throws an io error if there are none but pickled ones, with the
  /// command that converts them.
  bool has_weights() const;
  /// A hash of headers, lengths and samples of the weights' files, for ranks to compare. Opens
  /// them, and throws what load() throws of the files.
  std::string weights_hash() const;
  /// Overwrites the parameters of a session of transformer(options), where `options` are those of
  /// this folder, changed as options() allows. Those of LoRA keep their values. Each process reads
  /// only the slices of its ranks. Collective. Throws, in every process: io errors for files that
  /// are truncated or that lie, an index that names a file outside of the folder or tensors that
  /// its files lack, and tensors that the model does not have, lacks or has in other sizes.
  void load(Session& session, const nn::TransformerOptions& options) const;

 private:
  friend int64_t export_model(const std::string&, const ModelFolder&, const std::string&,
                              const ExportOptions&);
  std::unique_ptr<ModelDescription> model_;
};

/// What export_model() takes from a checkpoint.
struct ExportOptions {
  int64_t shard_bytes = ModelFolder::kShardBytes;  ///< most bytes of a file, without weights in
                                                   ///< `like`
  bool average = false;  ///< the moving averages of with_average() instead of the parameters, where
                         ///< there are some
  /// What the checkpoint was trained with, if it has parameters of LoRA. They are merged: a weight
  /// w becomes w + (alpha / rank) a b. Rank 0: as the checkpoint's metadata say, under "lora":
  /// {"alpha": 16, "dropout": 0}.
  nn::LoraOptions lora = {};
  /// Writes a and b instead, as PEFT reads them: adapter_config.json and adapter_model.safetensors
  /// in float32, with the modules (modules_to_save) whose parameters are not those of `like`.
  bool adapter = false;
};

/// Writes a checkpoint of a model of `like` as a new folder `to`: config.json and tokenizer files
/// of `like`, and the parameters under its names. A tensor that `like` holds keeps its dtype and
/// its file; without weights in `like`, tensors have the dtype of config.json and files hold at
/// most `shard_bytes`. The folder appears when it is complete. Holds one tensor in memory at a
/// time. Returns the number of tensors. Local. Throws usage errors if `to` exists, for a checkpoint
/// of another model, without averages or of another rank than `options` say, and for an adapter
/// without weights in `like` or with something trained that PEFT cannot express; io errors.
int64_t export_model(const std::string& checkpoint, const ModelFolder& like, const std::string& to,
                     const ExportOptions& options = {});

}  // namespace tessera
