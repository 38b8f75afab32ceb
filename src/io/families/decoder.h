// What the families that descend from Llama share: keys of config.json and names of tensors.
#pragma once

#include "io/families/family.h"

namespace tessera {

/// "silu", "gelu", "gelu_new", ... Throws an io error for another name.
nn::Activation activation_of(KeyedJson& config, const std::string& key,
                             const std::string& fallback);

/// The same of a name that the value of `key` stands for.
nn::Activation activation_named(const KeyedJson& config, const std::string& key,
                                const std::string& name);

/// How logits grow with a yarn scaling by `factor`: 0.1 share ln(factor) + 1, at least 1.
double yarn_growth(double factor, double share);

/// Rotary positions of an object "rope_parameters" (transformers 5) or "rope_scaling" (4).
/// `base` is what counts if the object has no rope_theta.
nn::RotaryOptions rotation_of(KeyedJson scaling, double base, int64_t max_positions);
/// Those of the whole model, with rope_theta beside the object or in it.
nn::RotaryOptions rotation_of(KeyedJson& config, double default_base);

/// Sizes, norms, activation, positions and tied output of a Llama, all layers alike. Reads no key
/// of biases and windows. Without num_key_value_heads, `key_heads` counts; 0: as many as heads,
/// which null means. Without rope_theta, `base` counts.
nn::TransformerOptions decoder_options(KeyedJson& config, int64_t key_heads = 0,
                                       double base = 10000);

/// The value of sliding_window, 0 for null. A file without the key means `fallback`.
int64_t window_of(KeyedJson& config, int64_t fallback);
/// Spans and pattern of a model whose layers from `first` on have windows, or that lists them in
/// layer_types.
void set_windows(KeyedJson& config, nn::TransformerOptions& options, int64_t window, int64_t first);

/// The tensors of experts instead of those of one feed-forward layer. `scope` is what stands behind
/// the number of the layer, the other names are those of an expert's matrices.
struct ExpertNames {
  const char *scope, *gate, *up, *down;
};
std::vector<WeightRule> expert_weights(const nn::TransformerOptions& options,
                                       const ExpertNames& names);

/// The tensors of a Llama, with the biases and norms that the options have.
std::vector<WeightRule> decoder_weights(const nn::TransformerOptions& options);

}  // namespace tessera
