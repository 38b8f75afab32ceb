// Attention layers with their masks, biases and positions. Query and key positions are two dims,
// `length` and `memory_length` by default. Masks are bool, true where a query may look, and combine
// with logical_and. A query that may look nowhere gets the mean of all values.
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
/// Key positions from (query position - before) to (query position + after).
Tensor window_mask(Graph& g, const Dim& length, const Dim& memory_length, int64_t before,
                   int64_t after, Loc at = Loc::current());
/// Causal, but all queries also see the first `prefix` keys. prefix: int32, a scalar or one for
/// each example. Result: [dims of prefix, length, memory_length].
Tensor prefix_mask(Tensor prefix, const Dim& length, const Dim& memory_length,
                   Loc at = Loc::current());
/// For several sequences packed into one row: a query sees only keys of its own segment. int32
/// segment numbers [..., length] and [..., memory_length]; 0 is padding, which no query sees.
Tensor segment_mask(Tensor segments, Tensor memory_segments, Loc at = Loc::current());
/// The position of each token within its segment, int32: index for position embeddings of packed
/// rows.
Tensor segment_positions(Tensor segments, const std::string& length = "length",
                         Loc at = Loc::current());

// -------------------------------------------------------------------------------------- positions
/// Rotary position embedding: rotates the pairs (x[i], x[i + n/2]) of `dim` by the angle position *
/// base^(-2i/n) (Su et al. 2021, with the pairs of GPT-NeoX). `positions` (int32 or int64, some of
/// x's dims) default to the index along `length`.
Tensor rotary(Tensor x, const std::string& length, const std::string& dim, Tensor positions = {},
              double base = 10000, Loc at = Loc::current());
/// Sinusoidal position embedding [length, dim]: sin in the first half of `dim`, cos in the second,
/// with wave lengths from 2 pi to 20000 pi (Vaswani et al. 2017).
Tensor sinusoids(Graph& g, const Dim& length, const Dim& dim, DType dtype = DType::float32,
                 Loc at = Loc::current());

struct RelativeOptions {
  int64_t buckets = 32, max_distance = 128;
  bool bidirectional = true;  ///< half of the buckets are for keys after the query
};
/// The bucket of the distance between key and query, int32 [length, memory_length]. Each small
/// distance has its own bucket, larger ones share buckets of equal logarithmic width, the last
/// begins at max_distance (Raffel et al. 2020).
Tensor relative_buckets(Graph& g, const Dim& length, const Dim& memory_length,
                        const RelativeOptions& options = {}, Loc at = Loc::current());
/// A learned bias for each bucket and head: [length, memory_length, heads...]. Parameter "<name>.w"
/// [relative_buckets, heads...].
Tensor relative_bias(Graph& g, const std::string& name, const Dim& length, const Dim& memory_length,
                     const Shape& heads, const RelativeOptions& options = {},
                     DType dtype = DType::float32, Loc at = Loc::current());
/// The same biases by distance [relative_distances, heads...], for AttentionOptions::by_distance,
/// which needs no tensor of queries by keys: of the distances -max_distance to max_distance.
Tensor relative_distances(Graph& g, const std::string& name, const Shape& heads,
                          const RelativeOptions& options = {}, DType dtype = DType::float32,
                          Loc at = Loc::current());

// -------------------------------------------------------------------------------------- attention
/// Extends attention(). `bias` (some of the logits' dims) is added to the logits. With
/// `extra_logit` the weights of a query sum to less than one, as if there were another key with
/// that logit and value 0. The value may have another dim in place of key_dim, which is then the
/// result's last.
struct BiasedOptions : AttentionOptions {
  Tensor bias = {};
  std::optional<double> extra_logit = {};
  /// Weights that differ only along these dims of the logits are dropped together. If `length` is
  /// among them, dropout is applied to the values instead, at almost no cost.
  std::vector<std::string> dropout_shared = {};
};
Tensor biased_attention(Tensor query, Tensor key, Tensor value, Tensor mask = {},
                        const BiasedOptions& options = {}, Loc at = Loc::current());

struct MultiHeadOptions {
  int64_t heads = 8;
  int64_t memory_heads = 0;  ///< heads of keys and values: 0: as many as heads; 1: multi-query
                             ///< (Shazeer 2019); a divisor of heads: grouped-query (Ainslie et al.
                             ///< 2023), with the query dims heads and heads_per_key
  int64_t d_head = 64;
  bool shared_kv = false;                        ///< use the keys as values
  bool bias = false;                             ///< of the projections
  bool rotary = false;                           ///< apply rotary() to queries and keys
  Tensor positions = {}, memory_positions = {};  ///< for rotary; default: the index
  Tensor mask = {};
  double gain = 1;  ///< initial scale of the output weights
  BiasedOptions attention = {};
};
/// Queries from x [..., length, model], keys and values from memory [..., memory_length, model].
/// Parameters "<name>.query.w" [model, heads, d_head], likewise "key" and "value", and "out"
/// (Vaswani et al. 2017). Result: the dims that only memory has, then x's dims.
Tensor multihead_attention(Tensor x, Tensor memory, const std::string& name,
                           const std::string& model, const MultiHeadOptions& options = {},
                           Loc at = Loc::current());
/// multihead_attention of x to itself.
Tensor self_attention(Tensor x, const std::string& name, const std::string& model,
                      const MultiHeadOptions& options = {}, Loc at = Loc::current());

struct LocalOptions {
  int64_t radius = 128;  ///< a query sees keys at distances below this
  bool causal = true;    ///< no keys after the query
  int64_t ahead = 0;     ///< not causal: last key after the query, at most block; 0: radius - 1
  int64_t block = 0;     ///< block length, at least radius; 0: radius
  std::string blocks = "length_blocks";  ///< the dim of blocks, which layout rules may split
  std::string length = "length", key_dim = "d_head";
  double scale = 0;      ///< as of attention()
  Tensor bias = {};      ///< added to the logits [blocks, length, memory_length]
  Tensor segments = {};  ///< int32 [..., length]: as in segment_mask
};
/// Sliding-window attention. The sequence is cut into blocks; each block attends to itself and its
/// neighbours, so cost and memory grow with length * radius. Query, key and value all have the dim
/// `length`; further dims match by name. Positions outside the sequence have no weight. A bounded
/// `length` stays bounded; it is bounded in all three or in none.
Tensor local_attention(Tensor query, Tensor key, Tensor value, const LocalOptions& options = {},
                       Loc at = Loc::current());

/// Talking-heads attention: logits are mixed across heads before the softmax, weights after it
/// (Shazeer et al. 2020). Query and key have the dim `from` of mix_logits [from, to]; value has the
/// dim `to` of mix_weights [from, to]; the softmax runs with the dim that both share. Result:
/// query's dims, but with value's heads.
Tensor talking_heads(Tensor query, Tensor key, Tensor value, Tensor mix_logits, Tensor mix_weights,
                     Tensor mask = {}, const AttentionOptions& options = {},
                     Loc at = Loc::current());

/// Means of `factor` neighbours along `dim`, as in memory-compressed attention (Liu et al. 2018).
/// An incomplete last group gives the mean of its elements.
Tensor compress_mean(Tensor x, const std::string& dim, int64_t factor, Loc at = Loc::current());

}  // namespace tessera::nn
