// What a family of models is: how its config.json becomes the options of one transformer, and where
// its tensors lie in the parameters. A family is one file in this folder; no other code knows it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/keyed_json.h"
#include "tessera/nn_transformer.h"

namespace tessera {

inline constexpr int64_t kMostLayers = 10000, kMostExperts = 10000;

/// A tensor of the files and the parameter that it is.
struct WeightRule {
  /// Its name. {layer} is the number of a layer, {expert} that of an expert.
  std::string tensor;
  /// Its dims in memory order, separated by commas: products of the parameter's dims ("heads*
  /// heads_per_key*d_head, d_model"). "1/3" is a dim of three of which this is number 1 (from 0):
  /// several parameters share the tensor. So do "d_plain+64" and
  /// "128+d_rotary": 64 places lie behind the parameter's dim, 128 before it. A dim that the
  /// parameter lacks has size 1.
  std::string dims;
  /// Without the model's name; "block." and "encoder.block." stand for the block of the layer.
  std::string parameter;
  /// A copy of what another rule reads, which a folder may hold: it must have the same elements.
  bool is_copy = false;
  /// Only of layers of this kind, an index into TransformerOptions::spans.
  std::optional<int> span = {};
  /// In a model without the parameter the tensor is a copy of this one; if it is "", there is no
  /// such tensor. Without a value the model has the parameter.
  std::optional<std::string> otherwise = {};
  int line = 0;  ///< of Family::file
};

struct Family {
  std::string model_type;
  std::function<nn::TransformerOptions(KeyedJson& config)> options;
  std::function<std::vector<WeightRule>(const nn::TransformerOptions& options)> weights;
  /// Tensors that carry nothing, as globs.
  std::vector<std::string> ignored = {};
  /// Of a layer of another kind, which files may have behind the last one of the model: a tensor,
  /// with {layer}, by which to know it. Nothing of such a layer is read.
  std::string mark_of_more_layers = {};
  /// Tensors that make the others mean something else, as globs, and what to do about it.
  std::vector<std::pair<std::string, std::string>> refused = {};
  /// What old files leave out at the front of names.
  std::string optional_prefix = {};
  /// Ends of names, and what old files have in their place.
  std::vector<std::pair<std::string, std::string>> old_ends = {};
  /// Of a family that a file describes: its path and its content.
  std::string file = {}, text = {};
};

extern const Family kLlama, kMistral, kQwen2, kQwen3, kGpt2, kGemma2, kGemma3, kMixtral, kQwen3Moe,
    kT5, kBert, kDeepseekV3, kVit;

/// All families.
const std::vector<const Family*>& families();

}  // namespace tessera
