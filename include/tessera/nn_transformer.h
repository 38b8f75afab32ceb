// One transformer, described by data: GPT-2, Llama, Mistral, Qwen, Gemma, DeepSeek, BERT, T5 and
// what users make of the same parts are TransformerOptions. The blocks are functions, so that a
// model can take one and write the rest.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/nn.h"

namespace tessera::nn {

// -------------------------------------------------------------------------------------- positions
/// How the rates of a rotary embedding are changed so that a model reads longer texts than it was
/// first trained on. `f` is the unchanged rate of a pair, 2 pi / f its wave length.
struct RotaryScaling {
  enum class Kind {
    none,
    linear,  ///< f / factor (Chen et al. 2023)
    llama3,  ///< by wave length: f below original_length / high_frequency, f / factor above
             ///< original_length / low_frequency, interpolated between (Llama 3.1)
    yarn     ///< f where a pair turns more than beta_fast times in original_length, f / factor
             ///< where it turns less than beta_slow times, interpolated between (Peng et al. 2023)
  };
  Kind kind = Kind::none;
  double factor = 1, original_length = 8192;
  double low_frequency = 1, high_frequency = 4;  ///< llama3
  double beta_fast = 32, beta_slow = 1;          ///< yarn
  bool truncate = true;                          ///< yarn: the ends of its ramp are whole pairs
  double attention_factor = 0;  ///< yarn: factor of cos and sin; 0: 0.1 ln(factor) + 1
};

struct RotaryOptions {
  double base = 10000;
  bool interleaved = false;  ///< pairs (x[2i], x[2i+1]), as in GPT-J; else (x[i], x[i + n/2])
  double share = 1;          ///< the first n = share * size elements are rotated, an even number
  RotaryScaling scaling = {};
};

/// The rates of the rotated pairs, in radians for each position, of heads with `size` elements.
/// Throws a usage error for options out of range.
std::vector<double> rotary_rates(const RotaryOptions& options, int64_t size,
                                 Loc at = Loc::current());

/// cos and sin of all angles, made once for all layers that share them.
struct RotaryTable {
  Tensor cos, sin;    ///< [dims of the positions, head dim]; sin has the sign of its element
  int64_t apart = 0;  ///< distance of the two elements of a pair
};
/// The table for heads of dim `depth`. `positions` (int32 or int64) default to the index along
/// `length`. dtype: float32 or float64.
RotaryTable rotary_table(Graph& g, const Dim& length, const Dim& depth,
                         const RotaryOptions& options, Tensor positions = {},
                         DType dtype = DType::float32, Loc at = Loc::current());
/// Rotates the pairs of dim `depth` of x. Computed in the table's dtype.
Tensor rotary(Tensor x, const std::string& depth, const RotaryTable& table,
              Loc at = Loc::current());

// ---------------------------------------------------------------------------------------- options
enum class Activation { relu, gelu, gelu_tanh, silu };
/// x * Phi(x) for gelu, by erf; gelu_tanh is the op gelu().
Tensor activate(Tensor x, Activation function, Loc at = Loc::current());

struct NormOptions {
  enum class Kind { layer, rms };
  Kind kind = Kind::layer;
  double eps = 1e-5;
  bool one_plus = false;  ///< rms: the factor is 1 + scale, and scale starts at 0 (Gemma)
};
/// Parameters "<name>.scale" and, for a layer norm, "<name>.bias".
Tensor norm(Tensor x, const std::string& name, const std::string& dim, const NormOptions& options,
            Loc at = Loc::current());

/// Latent attention (DeepSeek-V2): keys and values of all heads are products of one short vector of
/// a token, its latent, which is all that decoding keeps of the token, but for a part of the key
/// that all heads share. Only that part, and as much of each query, is rotated by the positions.
struct LatentOptions {
  int64_t rank = 0;        ///< elements of the latent; 0: each head has projections of its own
  int64_t query_rank = 0;  ///< if not 0, queries are products of a latent of their own, too
  int64_t d_rotary = 64;   ///< how many of the d_head elements of queries and keys are rotated
  int64_t d_value = 128;   ///< elements of a value
  NormOptions norm = {NormOptions::Kind::rms, 1e-6};  ///< of the latents
};

struct HeadOptions {
  int64_t count = 8;
  int64_t key_heads = 0;  ///< 0: count; 1: multi-query; a divisor of count: grouped-query
  int64_t d_head = 64;
  bool query_bias = false, key_bias = false, value_bias = false, out_bias = false;
  bool norm = false;    ///< rms norms of each query and key head, before the rotation (Qwen 3)
  double scale = 0;     ///< of the logits; 0: 1 / sqrt(d_head)
  double soft_cap = 0;  ///< c: logits become c tanh(logits / c) (Gemma 2); 0: none
  bool sinks = false;   ///< AttentionOptions::sinks, the parameter "sinks" of all heads
  LatentOptions latent = {};
};

struct MlpLayerOptions {
  int64_t ff = 512;
  bool gated = false;  ///< down(activation(gate x) * up x); else down(activation(up x))
  Activation activation = Activation::gelu_tanh;
  bool bias = false;
  /// If not 0, there are so many such layers, the experts, without biases. A token takes the
  /// `choices` of them that a router finds best. No token is dropped.
  int64_t experts = 0;
  int64_t choices = 2;
  Scores scores = Scores::softmax;  ///< the weights of a token's experts
  bool renormalize = true;          ///< divide the weights of a token by their sum
  double scale = 1;                 ///< of the weights, after that
  /// The choice, but not the weights, has a bias for each expert, which training does not change:
  /// RoutingOptions::bias.
  bool choice_bias = false;
  int64_t groups = 1, best_groups = 1;  ///< RoutingOptions::groups
  double dispatch_capacity = 2;         ///< Experts::dispatch_capacity
  int64_t shared_ff = 0;                ///< if not 0, ff of one more expert that all tokens take
};

/// What layers may differ in: how far they look, their positions, and their feed-forward layer.
struct SpanOptions {
  int64_t window = 0;  ///< a query sees this many keys, itself the last; 0: all before it
  bool rotary = false;
  RotaryOptions rotation = {};
  std::optional<MlpLayerOptions> mlp = {};  ///< TransformerOptions::mlp, if there is none
};

/// Where a block has its norms: on the inputs of its parts (GPT-2), on the sums (BERT), or on
/// inputs and results of its parts (Gemma 2).
enum class NormPlacement { before, after, both };

/// Images as the tokens of a model that classifies them (ViT): each patch is one, behind the token
/// of the class.
struct ImageOptions {
  int64_t classes = 0;  ///< 0: the model reads texts
  int64_t rows = 224, cols = 224, channels = 3, patch = 16;
  std::vector<double> mean = {}, deviation = {};  ///< of channels; x becomes (x - mean) / deviation
  int64_t tokens() const { return rows / patch * (cols / patch) + 1; }
};

/// Predicts tokens further ahead than the next one, too, which makes a better model of the same
/// data. Module k of 1 to `depth` is a block of the kind of the last layer, and a norm; it predicts
/// the token k places behind the next one, with the model's head. Only the loss has them: decoding
/// leaves them out.
struct MultiTokenOptions {
  enum class Kind {
    /// Module k reads M [norm(h); norm(e)]: h is what the head before it reads, that of the next
    /// token for k = 1, and e the embedding of the token k places ahead (DeepSeek-AI 2024, section
    /// 2.2).
    chained,
    /// Each module reads what the last layer reads, and is another last layer (Gloeckle et al.
    /// 2024).
    parallel
  };
  int64_t depth = 0;  ///< 0: none; less than the length
  Kind kind = Kind::chained;
  /// The loss is that of the next tokens plus so many times the mean of the losses of the modules.
  double weight = 0.3;
};

struct TransformerOptions {
  std::string name = "transformer";  ///< scope of the whole
  int64_t layers = 4, d_model = 128, vocab = 256, length = 128, batch = 8;
  HeadOptions heads = {};
  MlpLayerOptions mlp = {};
  NormOptions norm = {};
  NormPlacement placement = NormPlacement::before;
  bool parallel = false;  ///< attention and feed-forward layer read one norm and are added (GPT-J)
  /// False: a token sees those behind it, too, and the logits at a place are those of its own token
  /// (BERT).
  bool causal = true;
  /// If not 0, the model also has an encoder (T5): blocks whose tokens see all of "inputs". Those
  /// of the decoder read "decoder_inputs" and attend to the encoder's result, too.
  int64_t encoder_layers = 0;
  int64_t target_length = 0;  ///< of a decoder with an encoder, whose length is `length`
  int32_t start_token = 0, end_token = 1;  ///< of the texts of such a decoder
  bool learned_positions = false;
  int64_t positions = 0;  ///< rows of the learned positions, their dim "positions"; 0: length,
                          ///< and the dim "length"
  /// If not 0, each head has learned biases of the logits for so many buckets of distances between
  /// query and key, which all layers share: relative_buckets(). Half are for keys behind the query,
  /// unless it sees none.
  int64_t relative_buckets = 0, relative_distance = 128;
  /// Rows of an embedding of the text that a token is from, 2 for BERT; all are of the first.
  int64_t token_types = 0;
  bool embedding_norm = false;  ///< of the sum of the embeddings
  /// Layer i is of kind pattern[i % pattern.size()], an index into `spans`.
  std::vector<SpanOptions> spans = {{}};
  std::vector<int> pattern = {0};
  double embedding_scale = 1;
  double logits_scale = 1, logits_cap = 0;  ///< a cap c: c tanh(logits / c)
  bool tied = false;                        ///< the output projection uses the embedding
  bool head_bias = false;                   ///< of the output projection
  /// Before the output projection: a dense layer with biases, the activation of `mlp` and a norm.
  bool head_transform = false;
  double dropout = 0;
  bool partial_batch = false;    ///< batch is bounded, for a shorter last batch in evaluation
  DType dtype = DType::float32;  ///< of activations; parameters stay float32 unless float64
  bool float8 = false;           ///< of the blocks' matmuls: float8_matmul()
  bool scan = false;             ///< runs of layers of one kind are loops over the dim "layers"
  bool packed = false;           ///< windows of several texts: see transformer()
  int64_t loss_blocks = 1;  ///< above 1: the loss is linear_cross_entropy() by so many blocks of
                            ///< the length, a divisor of it; the head has neither bias
                            ///< nor transform
  bool weighted = false;    ///< targets have the input "weights", as they have if `packed`
  /// Of the dense layers of the blocks; of the head and the experts' matrices ("expert.up"), too,
  /// if a target names them, but those have no dropout. Routers have none.
  LoraOptions lora = {};
  ImageOptions image = {};
  MultiTokenOptions ahead = {};

  /// The kind of a layer, an index into `spans`.
  int kind_of(int64_t layer) const { return pattern[static_cast<size_t>(layer) % pattern.size()]; }
  const MlpLayerOptions& mlp_of(int64_t layer) const {
    const SpanOptions& span = spans[static_cast<size_t>(kind_of(layer))];
    return span.mlp ? *span.mlp : mlp;
  }
  /// Whether there is something to loop over for `scan`: a layer behind one of its kind, or a
  /// single layer.
  bool can_scan() const;
};

/// Layers of one kind that follow one another: those of a loop, or one.
struct LayerRun {
  int64_t first = 0, count = 1;
  /// Whether it is a loop. Then parameters of all its layers have the dim "layers".
  bool is_loop = false;
  std::string block = {};  ///< the scope: "block" of a loop of all layers, "block<first>" otherwise
};
/// All layers, in order. Of parallel modules for tokens further ahead, the last one is in no loop.
std::vector<LayerRun> layer_runs(const TransformerOptions& options);

// ----------------------------------------------------------------------------------------- blocks
/// The inputs about the texts in a window, int32 [batch, length]: TextOptions says what they are.
struct PackedInputs {
  Tensor segments = {}, positions = {};
};
/// What all layers of one kind share.
struct SharedSpan {
  RotaryTable rotary = {};
  std::optional<int64_t> window = {};  ///< of AttentionOptions
  Tensor segments = {};                ///< of AttentionOptions
  std::string length = "length";       ///< the dim of the tokens
  Tensor bias = {};                    ///< of BiasedOptions, for self-attention
  Tensor memory = {};                  ///< what cross-attention reads: [batch, length, d_model]
  std::optional<MlpLayerOptions> mlp = {};  ///< of SpanOptions
  Tensor memory_segments = {};              ///< of the memory, if there are segments
  Tensor by_distance = {};                  ///< of AttentionOptions, for self-attention
};
SharedSpan shared_span(Graph& g, const TransformerOptions& options, const SpanOptions& span,
                       const PackedInputs& packed = {}, Loc at = Loc::current());

/// Self-attention of x [..., length, d_model], causal if the options are. Dims: heads (those of the
/// keys), and heads_per_key and d_head. Parameters in the scope "attention": "query.w" [d_model,
/// heads, heads_per_key, d_head], "key.w", "value.w", "out.w", biases "query.b" and so on,
/// "query_norm" and "key_norm". Without grouping there is no dim heads_per_key; with a single key
/// head, keys and values have no dim heads. Latent attention has "latent.w" [d_model, d_latent] and
/// "latent_norm", "key.w" [d_latent, heads, d_plain], "key_rotary.w" [d_model, d_rotary], "value.w"
/// [d_latent, heads, d_value], "query.w" and "query_rotary.w", which read d_model, or
/// d_query_latent behind "query_latent.w" and "query_latent_norm", and "out.w" [heads, d_value,
/// d_model].
Tensor attention_layer(Tensor x, const TransformerOptions& options, const SharedSpan& span,
                       Loc at = Loc::current());
/// Parameters in the scope "mlp": "up.w" [d_model, ff], "gate.w", "down.w", and biases; with
/// experts "router.w" [d_model, experts], "router.bias" [experts], "expert.up.w" [experts, d_model,
/// ff] and so on, and "shared.up.w" [d_model, ff] and so on.
Tensor mlp_layer(Tensor x, const TransformerOptions& options, Loc at = Loc::current());
/// Attention of x to SharedSpan::memory, with the parameters of attention_layer() in the scope
/// "cross".
Tensor cross_attention_layer(Tensor x, const TransformerOptions& options, const SharedSpan& span,
                             Loc at = Loc::current());
/// Self-attention and feed-forward layer with their norms "norm1" and "norm2" (and "norm1_after",
/// "norm2_after") and residual sums; with a memory cross-attention between them, with "norm_cross".
Tensor transformer_block(Tensor x, const TransformerOptions& options, const SharedSpan& span,
                         Loc at = Loc::current());

/// A language model. Dims: batch, length, memory_length, d_model, heads, heads_per_key,
/// d_head, d_latent, d_query_latent, d_plain, d_rotary, d_value, ff, experts, vocab, positions,
/// relative_buckets, token_types, d_transform. Inputs: "inputs" and "targets", int32 [batch,
/// length]. Parameters "<name>.embedding", "<name>.position", those of block i in "<name>.block<i>"
/// (of all in "<name>.block" with scan, see LayerRun), "<name>.norm",
/// "<name>.relative.w", "<name>.token_type", "<name>.embedding_norm", "<name>.head.w" and
/// "<name>.head.b", "<name>.head_transform" and "<name>.head_norm". If `packed`, three more inputs
/// [batch, length] say where texts begin and what counts: "segments" (tokens see only their own),
/// "positions", both int32, and "weights", float32, of the targets. If only `weighted`, there is
/// "weights" alone. With weights the loss is a weighted sum with its weight. Throws usage errors
/// for options that do not fit together.
///
/// With MultiTokenOptions::depth the parameters of module k are in "<name>.ahead<k - 1>": "norm",
/// those of a block, and of a chained one "state_norm", "state.w" [d_model, d_ahead], "token_norm"
/// and "token.w" [d_model, d_ahead]. A token without one so far ahead in its row, or in its
/// segment, has no part in a module's loss, and still counts in the number that a mean divides by.
/// Metrics are "next_loss", of the next tokens, and "ahead_loss", the mean of the modules' losses.
///
/// With an encoder "decoder_inputs", "targets" and weights have the dim target_length instead, and
/// the encoder's parameters are in "<name>.encoder". If `packed`, it has "segments" of the inputs
/// and "decoder_segments", and no positions: a target sees the inputs of its own segment.
///
/// With ImageOptions::classes the model classifies images; `length` is image.tokens(), `causal`
/// false and `vocab` does not count. Inputs: "images", float32 [batch, channels, rows, cols], of
/// one channel [batch, rows, cols], and "labels", int32 [batch]. Dims besides: filter_height,
/// filter_width, positions, classes. Parameters besides the blocks: "<name>.patch.w",
/// "<name>.patch.b", "<name>.class_token", "<name>.position", "<name>.norm", "<name>.head.w" and
/// "<name>.head.b".
Model transformer(Graph& g, const TransformerOptions& options);

/// The options with which transformer() is gpt(). Throws its usage errors.
TransformerOptions transformer_of(const GptOptions& options);

// --------------------------------------------------------------------------------------- decoding
struct DecoderOptions {
  int64_t rows = 1;       ///< texts at a time, the dim "batch"
  int64_t chunk = 64;     ///< tokens of a row that "read" and "score" take at most
  int64_t context = 0;    ///< most tokens of a row in all; 0: length
  int64_t segment = 512;  ///< tokens of a cache's first segment; others double it
  bool scores = false;    ///< also make the function "score"
  int64_t choices = 5;    ///< the likeliest tokens of each score, at most vocab
  int64_t source = 0;     ///< most tokens that an encoder reads; 0: length
  bool reorders = false;  ///< also make the function "reorder"
  /// A step attends to one cache of the whole context, its own tokens in it, by the ops of
  /// training. With strict numerics, and a context as long as `length`, its logits are then those
  /// of the training forward, bit for bit. Each step reads the whole context, layers with a window
  /// too.
  bool as_trained = false;
};

/// The functions for rows of at most `context` tokens, those of this step counted. They read and
/// write that much of the caches, and compute as much, however large the caches are.
struct DecoderStep {
  int64_t context = 0;
  /// Takes up to a chunk of tokens of each row, or one, and makes the float32 logits [batch, vocab]
  /// of the token after the row's last.
  FunctionSpec read, write;
  Tensor logits;       ///< made by `read`
  Tensor next_logits;  ///< made by `write`
  /// With DecoderOptions::scores: makes what `read` makes, and scores of the tokens.
  FunctionSpec score;
  Tensor log_probs;                    ///< float32 [batch, length]: of the targets
  Tensor best_tokens, best_log_probs;  ///< [batch, length, choices], the likeliest first
};

/// A transformer that keeps keys and values of earlier tokens as state: a row's tokens may come in
/// one step or in many. A layer with a window keeps only the tokens of its window. A row uses the
/// first `counts` of its tokens in a step, and with none it waits. A row whose `starts` is 0 begins
/// a new text. Rows do not depend on each other. Dims are those of transformer(), with `length` the
/// chunk, or 1; and query_length and new_length in the attention to the tokens of a step.
struct Decoder {
  Tensor starts, counts;  ///< inputs, int32 [batch]: tokens of earlier steps, tokens of this one
  Tensor tokens;   ///< input of DecoderStep::read, int32 [batch, length]; 0 where there is none
  Tensor token;    ///< input of DecoderStep::write, int32 [batch]
  Tensor targets;  ///< input of DecoderStep::score, int32 [batch, length]: the token after each one
  /// For more and more tokens: after the first segment of the caches, the second, and so on.
  std::vector<DecoderStep> steps;
  /// The functions for rows of `context` tokens, at least 1.
  const DecoderStep& step_for(int64_t context) const;
  /// Of a model with an encoder: reads the sources of the rows whose count is not 0, which each row
  /// attends to from then on.
  FunctionSpec encode;
  Tensor sources, source_counts;  ///< inputs, int32 [batch, length] and [batch]
  /// With DecoderOptions::reorders: row r takes over the tokens of row parents[r], but not its
  /// source.
  FunctionSpec reorder;
  Tensor parents;  ///< input, int32 [batch]
};
/// The decoder of transformer(g, options), with its parameters; `options.batch` and dropout do not
/// count. Throws usage errors as transformer(), for options out of range, and for a model that is
/// not causal. With an encoder, `length` of tokens, targets and scores is target_length.
Decoder decoder(Graph& g, const TransformerOptions& options, const DecoderOptions& decoding = {});

}  // namespace tessera::nn
