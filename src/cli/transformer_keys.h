// Keys of gpt and of folders' models that mean the same in both, and their data.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/cli.h"
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

}  // namespace tessera::cli
