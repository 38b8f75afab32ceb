// Keys and data of folders' models that repair texts: T5 by corrupted spans, BERT by masked tokens.
#pragma once

#include <memory>
#include <vector>

#include "tessera/cli.h"
#include "tessera/denoising_data.h"
#include "tessera/model_folder.h"

namespace tessera::cli {

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
