// Attention layers, and the masks, biases and positions that go with them. Positions of queries and
// of keys are two dims, `length` and `memory_length` by default. Masks are bool, true where a query
// may look, and combine with logical_and; a query that may look nowhere gets the mean of all
// values.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/graph.h"
#include "tessera/nn_layers.h"
#include "tessera/ops.h"

namespace tessera::nn {

// ------------------------------------------------------------------------------------------ masks
/// [length, memory_length]: key position <= query position.
Tensor causal_mask(Graph& g, const Dim& length, const Dim& memory_length, Loc at = Loc::current());
/// Key positions from query position - before to query position + after.
Tensor window_mask(Graph& g, const Dim& length, const Dim& memory_length, int64_t before,
                   int64_t after, Loc at = Loc::current());
/// Causal, but that all queries see the first `prefix` keys (an int32 scalar, or one for each
/// example): [dims of prefix, length, memory_length].
Tensor prefix_mask(Tensor prefix, const Dim& length, const Dim& memory_length,
                   Loc at = Loc::current());
/// Several sequences packed in one row: a query sees the keys of its own segment. int32 numbers
/// [..., length] and [..., memory_length]; 0 is padding, which nobody sees.
Tensor segment_mask(Tensor segments, Tensor memory_segments, Loc at = Loc::current());
/// The position of each token in its own segment, int32: what embeddings of packed rows look up.
Tensor segment_positions(Tensor segments, const std::string& length = "length",
                         Loc at = Loc::current());

// -------------------------------------------------------------------------------------- positions
/// x turned by its position: the pairs (x[i], x[i + n/2]) of `dim` by the angle position *
/// base^(-2i/n) (Su et al. 2021, in the arrangement of GPT-NeoX). `positions` (int32, some of x's
/// dims) default to the index along `length`.
Tensor rotary(Tensor x, const std::string& length, const std::string& dim, Tensor positions = {},
              double base = 10000, Loc at = Loc::current());
/// [length, dim]: sin in the first half of `dim`, cos in the second, of position over wave lengths
/// from 2 pi to 20000 pi (Vaswani et al. 2017).
Tensor sinusoids(Graph& g, const Dim& length, const Dim& dim, DType dtype = DType::float32,
                 Loc at = Loc::current());

struct RelativeOptions {
  int64_t buckets = 32, max_distance = 128;
  bool bidirectional = true;  ///< half of the buckets are for keys after the query
};
/// The bucket of key position - query position, int32 [length, memory_length]: one each for small
/// distances, then of equal logarithmic width, the last from max_distance on (Raffel et al. 2020).
Tensor relative_buckets(Graph& g, const Dim& length, const Dim& memory_length,
                        const RelativeOptions& options = {}, Loc at = Loc::current());
/// A number for each bucket and head: [length, memory_length, heads...]. Parameter "<name>.w"
/// [relative_buckets, heads...].
Tensor relative_bias(Graph& g, const std::string& name, const Dim& length, const Dim& memory_length,
                     const Shape& heads, const RelativeOptions& options = {},
                     DType dtype = DType::float32, Loc at = Loc::current());

// -------------------------------------------------------------------------------------- attention
/// What is added to attention(): the logits get `bias` (some of their dims), and the weights of a
/// query sum to less than one, as if there were one more key with logit `extra_logit` and value 0.
/// The value may have another dim in the place of key_dim; the result then has that one, last.
struct BiasedOptions : AttentionOptions {
  Tensor bias = {};
  std::optional<double> extra_logit = {};
  /// Weights that differ only along these dims of the logits are dropped together. With `length`
  /// among them dropout is one of the values, and costs next to nothing.
  std::vector<std::string> dropout_shared = {};
};
Tensor biased_attention(Tensor query, Tensor key, Tensor value, Tensor mask = {},
                        const BiasedOptions& options = {}, Loc at = Loc::current());

struct MultiHeadOptions {
  int64_t heads = 8;
  int64_t memory_heads = 0;  ///< of keys and values: 0 as many as heads; 1 (multi-query, Shazeer
                             ///< 2019); a divisor (grouped, Ainslie et al. 2023: query heads are
                             ///< then the dims heads and heads_per_key)
  int64_t d_head = 64;
  bool shared_kv = false;                        ///< values are the keys
  bool bias = false;                             ///< of the projections
  bool rotary = false;                           ///< of queries and keys
  Tensor positions = {}, memory_positions = {};  ///< of rotary, where they are not the index
  Tensor mask = {};
  double gain = 1;  ///< of the output's first weights
  BiasedOptions attention = {};
};
/// Queries from x [..., length, model], keys and values from memory [..., memory_length, model]:
/// parameters "<name>.query.w" [model, heads, d_head], "key", "value" and "out" (Vaswani et al.
/// 2017). The result has x's dims, after those that only memory has.
Tensor multihead_attention(Tensor x, Tensor memory, const std::string& name,
                           const std::string& model, const MultiHeadOptions& options = {},
                           Loc at = Loc::current());
/// The same with x as its own memory.
Tensor self_attention(Tensor x, const std::string& name, const std::string& model,
                      const MultiHeadOptions& options = {}, Loc at = Loc::current());

struct LocalOptions {
  int64_t radius = 128;                  ///< of keys: those less than that far away
  bool causal = true;                    ///< none after the query
  int64_t ahead = 0;                     ///< if not causal: the most that a key is after the query,
                                         ///< at most a block; 0: radius - 1
  int64_t block = 0;                     ///< length of a block, at least radius; 0: radius
  std::string blocks = "length_blocks";  ///< the dim that rules may split
  std::string length = "length", key_dim = "d_head";
  double scale = 0;      ///< as of attention()
  Tensor bias = {};      ///< of the logits [blocks, length, memory_length], as of BiasedOptions
  Tensor segments = {};  ///< int32 [..., length]: as of segment_mask
};
/// Attention of each position to those near it, in blocks that look at themselves and their
/// neighbours: cost and memory grow with length * radius. Query, key and value all have the dim
/// `length`; any further dims by name. What lies outside of the sequence has no weight.
Tensor local_attention(Tensor query, Tensor key, Tensor value, const LocalOptions& options = {},
                       Loc at = Loc::current());

/// Attention whose logits and weights are mixed across heads before and after the softmax (Shazeer
/// et al. 2020). Query and key have the dim `from` of mix_logits [from, to], value has the dim `to`
/// of mix_weights [from, to], the softmax runs with the dim that they share. The result has the
/// dims of query, with value's heads.
Tensor talking_heads(Tensor query, Tensor key, Tensor value, Tensor mix_logits, Tensor mix_weights,
                     Tensor mask = {}, const AttentionOptions& options = {},
                     Loc at = Loc::current());

/// Means of `factor` neighbours along `dim`: the memory of memory-compressed attention (Liu et al.
/// 2018). A last group that is not full has the mean of what it has.
Tensor compress_mean(Tensor x, const std::string& dim, int64_t factor, Loc at = Loc::current());

}  // namespace tessera::nn
