// Keys of gpt and of folders' models that mean the same in both, and the data of models.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/cli.h"
#include "tessera/data.h"
#include "tessera/denoising_data.h"
#include "tessera/model_folder.h"
#include "tessera/nn_transformer.h"

namespace tessera::cli {
/// model.loss_blocks.
ConfigKey loss_blocks_key();
/// model.ahead, model.ahead_kind, model.ahead_weight; and what they say.
std::vector<ConfigKey> ahead_keys();
nn::MultiTokenOptions ahead_of(const Config& config);
/// model.lora_rank, model.lora_alpha, model.lora_targets.
std::vector<ConfigKey> lora_keys();
/// What they say; no adaptation for a model without these keys.
nn::LoraOptions lora_of(const Config& config);
/// The items of "a, b,c".
std::vector<std::string> items_of(const std::string& text);

/// Whether the data have segments, positions and weights: data.packed, or FILE.jsonl.
bool is_packed(const Config& config);
/// Whether the data are files of samples, FILE.jsonl.
bool is_of_samples(const Config& config);
/// Samples for a model whose encoder reads the prompts; null if nothing is held out. `tokenizer` as
/// for open_tokens(). Throws a usage error for a blend with other files.
std::unique_ptr<DataSource> open_pairs(const Config& config, bool held_out,
                                       const nn::TransformerOptions& model,
                                       const std::string& tokenizer);
/// The data of data.path for a model of tokens: text, corpora and files of samples, or a blend of
/// them; null if nothing is held out. `options`: length, vocabulary and token_bytes. `tokenizer` is
/// that of the samples if data.tokenizer is empty.
std::unique_ptr<DataSource> open_tokens(const Config& config, bool held_out, TextOptions options,
                                        const std::string& tokenizer = {});

/// The files {train,test}-images-idx3-ubyte.gz, or idx4 for images with channels, and
/// {train,test}-labels-idx1-ubyte.gz. Throws a usage error without data.path, or with the right
/// path if the images are in a subfolder, and errors of IdxData.
std::unique_ptr<DataSource> open_images(const Config& config, bool held_out);

// Of folders' models that repair texts: T5 by corrupted spans, BERT by masked tokens.

/// None for a model that continues texts.
std::vector<ConfigKey> denoising_keys(const nn::TransformerOptions& model);

/// For a model with an encoder: text of the data that becomes inputs of at most model.length
/// tokens, and what it becomes.
struct CorruptedLengths {
  int64_t text = 0, inputs = 0, targets = 0;
};
CorruptedLengths corrupted_lengths(const nn::TransformerOptions& model, const Config& config);

/// `texts`, whose examples are windows, with what the model has to repair; unchanged for a model
/// that continues texts, and null if it is null. Throws usage errors for special tokens that
/// neither a key nor the folder's tokenizer gives.
std::unique_ptr<DataSource> to_repair(std::unique_ptr<DataSource> texts, const ModelFolder& folder,
                                      const Config& config, bool held_out);

}  // namespace tessera::cli
