// What Gemma 2 and 3 share.
#pragma once

#include "io/families/decoder.h"

namespace tessera {

/// All but windows, rotary positions and soft caps.
nn::TransformerOptions gemma_options(KeyedJson& config);
/// Two kinds of layers: of every `each` layers the last is full, unless layer_types says otherwise.
void set_alternating_windows(KeyedJson& config, nn::TransformerOptions& options, int64_t each);
std::vector<WeightRule> gemma_weights(const nn::TransformerOptions& options);

}  // namespace tessera
