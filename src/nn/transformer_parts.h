// The parts of a transformer that training and decoding share, and the keys and values that
// decoding keeps.
#pragma once

#include "tessera/nn_linear_cross_entropy.h"
#include "tessera/nn_transformer.h"

namespace tessera::nn {

/// Dims of queries, of keys and values, and of what attention makes of them, besides batch and
/// length.
struct HeadDims {
  Shape query, key, value, seen;
};
HeadDims head_dims(const HeadOptions& options);
/// Dims of what decoding keeps as keys and values of a token.
struct CachedDims {
  Shape key, value;
};
CachedDims cached_dims(const HeadOptions& options, bool as_trained);

/// What attention reads of x [..., length, d_model].
struct AttentionOperands {
  Tensor query = {}, key = {}, value = {};
  /// Of latent attention for a cache: `value` is the latent, and the logits have its products with
  /// this, besides those of the rotary parts `query` and `key`.
  Tensor latent_query = {};
  Tensor sinks = {};  ///< of AttentionOptions
};
/// The operands of latent attention, with keys and values of the heads, or those for a cache.
AttentionOperands latent_operands(Tensor x, const TransformerOptions& options,
                                  const SharedSpan& span, bool for_cache, Loc at = Loc::current());
/// Weighted sums of latents [..., heads, d_latent] as those of the heads' values.
Tensor values_of_latents(Tensor sums, const TransformerOptions& options, Loc at = Loc::current());

/// c tanh(x / c)
Tensor capped(Tensor x, double cap, Loc at);

/// The places [first, first + size) of a cache, a state of their own: a step that needs no others
/// does not read them.
struct CacheSegment {
  int64_t first = 0, size = 0;
  Tensor seen;    ///< bool [batch, query_length, memory_length]: what is there and may be seen
  Tensor behind;  ///< int32, of these dims: how far the query is behind the key
  Tensor bias_of_seen;  ///< of the logits, with the dims of heads; or empty
  Tensor source;        ///< int32 [batch, memory_length]: the token of the step that goes there
  Tensor hit;           ///< bool [batch, memory_length]: whether there is one
};
/// Where the tokens of a step go in caches with `slots` places, which layers of one kind share.
/// Token p of a row has its place p mod slots, so that a cache holds the last `slots` tokens.
struct CacheSlots {
  bool as_trained =
      false;           ///< DecoderOptions::as_trained: one segment, which has the step's tokens
  std::string length;  ///< the dim of the step's tokens: "length", or "target_length"
  Tensor starts;       ///< int32 [batch]: tokens of earlier steps
  int64_t window = 0;  ///< 0: none
  std::vector<CacheSegment> segments;
  Tensor inside;          ///< bool [query_length, new_length]: the tokens of the step themselves
  Tensor back;            ///< int32, of these dims: how far the query is behind the key
  Tensor bias_of_inside;  ///< as CacheSegment::bias_of_seen
};
/// `starts` and `counts`, int32 [batch]: tokens in the cache, and tokens of the step. `ends`: where
/// the segments that a step needs end.
CacheSlots cache_slots(Tensor starts, Tensor counts, const Dim& length, int64_t slots,
                       int64_t window, const std::vector<int64_t>& ends, bool as_trained,
                       Loc at = Loc::current());

struct KeyValue {
  Tensor key = {}, value = {};
};
/// What one layer keeps.
struct LayerCache {
  const CacheSlots* slots = nullptr;
  /// Of earlier tokens, by segment: [batch, memory_length, cached_dims()...].
  std::vector<KeyValue> kept = {};
  /// Set by attention_of(): of the step, with `length`; of all tokens if CacheSlots::as_trained.
  Tensor new_key = {}, new_value = {};
  /// What the encoder's result became for this layer: [batch, memory_length, heads..., d_head], and
  /// int32 [batch, memory_length]: 1 for a token of the source, 0 behind it.
  KeyValue memory = {};
  Tensor is_source = {};
};
/// Causal attention of the step's tokens to the cache and to each other.
Tensor cached_attention(const AttentionOperands& operands, const TransformerOptions& options,
                        LayerCache& cache, Loc at = Loc::current());
/// A segment of a cache with the step's tokens, which have its dims, but `length` in place of
/// memory_length.
Tensor cache_with(Tensor cache, Tensor tokens, const CacheSegment& segment,
                  const std::string& length, Loc at = Loc::current());

/// What layers of this kind share but for their masks. `positions` as of rotary_table().
SharedSpan placed_span(Graph& g, const TransformerOptions& options, const SpanOptions& span,
                       const Dim& length, Tensor positions, Loc at = Loc::current());

/// A dense layer of a block.
Tensor projected(Tensor x, const char* name, const std::vector<std::string>& in, const Shape& out,
                 const TransformerOptions& options, bool bias, Loc at, double gain = 1);
/// Initial scale of what is added to the residual stream.
double residual_gain(const TransformerOptions& options);
/// attention_layer() and cross_attention_layer(), with a cache if it is not null.
Tensor attention_of(Tensor x, const TransformerOptions& options, const SharedSpan& span,
                    LayerCache* cache, Loc at = Loc::current());
Tensor cross_attention_of(Tensor x, const TransformerOptions& options, const SharedSpan& span,
                          LayerCache* cache, Loc at = Loc::current());
/// The keys and values of cross-attention, with memory_length in place of the memory's length. In
/// the scope "cross" of a block.
KeyValue cross_keys(Tensor memory, const TransformerOptions& options, Loc at = Loc::current());
/// The encoder's result [batch, length, d_model] for the tokens of sources [batch, length].
/// `segments`, int32: 1 for a token, 0 behind the last one; if they are empty, all are tokens.
Tensor encoded(Graph& g, const TransformerOptions& options, Tensor sources, Tensor embedding,
               Tensor segments);
/// The learned biases [relative_buckets, heads...] of the scope.
Tensor relative_table(Graph& g, const TransformerOptions& options);
/// As relative_buckets(), of int32 distances: the position of a query minus that of a key.
Tensor bucket_of(Tensor distance, const RelativeOptions& options, Loc at = Loc::current());

/// Throws usage errors for options that do not fit together.
void require_fitting(const TransformerOptions& options);
/// The embeddings of the inputs, with learned positions: those of `positions`, or the index.
Tensor embedded(Graph& g, const TransformerOptions& options, Tensor inputs, Tensor embedding,
                Tensor positions);
/// The embeddings of tokens [..., length, d_model] alone, scaled, in the dtype of activations.
Tensor embedded_tokens(const TransformerOptions& options, Tensor tokens, Tensor embedding);
/// By kind of layer. `memory`, if there is one, is the encoder's result, of `memory_segments`.
std::vector<SharedSpan> shared_spans(Graph& g, const TransformerOptions& options,
                                     const PackedInputs& packed, Tensor memory = {},
                                     Tensor memory_segments = {});
/// x through all blocks. `before_last`, if not null: what a last layer outside of a loop reads.
Tensor through_blocks(Graph& g, const TransformerOptions& options,
                      const std::vector<SharedSpan>& spans, Tensor x,
                      Tensor* before_last = nullptr);
/// One divided by the number of elements of x, a scalar: the weight of each in a mean. The number
/// is known, so ranks need not count.
Tensor one_of(const Tensor& x, DType dtype);
/// Those of TransformerOptions::loss_blocks, along the dim `length`.
LinearCrossEntropyOptions loss_blocks_of(const TransformerOptions& options,
                                         const std::string& length);

/// What the losses of tokens further ahead are computed of.
struct AheadInputs {
  Tensor tokens, targets;  ///< int32 [batch, length]
  Tensor weights;          ///< float32 [batch, length], or empty: all are 1
  Tensor segments;         ///< int32 [batch, length], or empty
  Tensor embedding, head;
  Tensor last;         ///< what the head of the next token reads
  Tensor before_last;  ///< what the last layer reads, for parallel modules
};
/// The mean of the modules' losses: each a mean over all tokens, or with weights a sum.
Tensor loss_ahead(Graph& g, const TransformerOptions& options, const std::vector<SharedSpan>& spans,
                  const AheadInputs& in);
/// A transformer() of images.
Model image_classifier(Graph& g, const TransformerOptions& options);
/// transformer_block(), with a cache if it is not null.
Tensor block_of(Tensor x, const TransformerOptions& options, const SharedSpan& span,
                LayerCache* cache, Loc at = Loc::current());
/// `weights` of the layer `name`, which reads the dims `in` of x, with the product of its LoRA
/// matrices where it is adapted: for weights that several steps read. For each element of the dims
/// `stacked` (experts) there are separate ones. Throws a usage error for LoRA with dropout.
Tensor adapted(Tensor weights, Tensor x, const std::string& name,
               const std::vector<std::string>& in, const LoraOptions& options,
               const std::vector<std::string>& stacked = {}, Loc at = Loc::current());
/// The output projection [d_model, vocab], the embedding if it is tied.
Tensor head_weights(Tensor x, const TransformerOptions& options, Tensor embedding);
/// The logits of what the last norm gives.
Tensor logits_of(Tensor x, const TransformerOptions& options, Tensor weights);

}  // namespace tessera::nn
