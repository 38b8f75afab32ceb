#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "nn/stored.h"
#include "nn/transformer_parts.h"
#include "tessera/loops.h"
#include "tessera/nn_transformer.h"

namespace tessera::nn {

Tensor norm(Tensor x, const std::string& name, const std::string& dim, const NormOptions& o,
            Loc at) {
  if (o.kind == NormOptions::Kind::layer) return norm(x, name, dim, o.eps, at);
  if (!o.one_plus) return rms_norm(x, name, dim, o.eps, at);
  return on_behalf_of("norm", at, [&] {
    Tensor scale = parameter_for(x, name + ".scale", Shape{x.dim(dim)}, zeros(), at);
    return rms_norm(x, dim, scale + 1.0, o.eps, at);
  });
}

namespace {

/// Standard deviation of the initial logits. The initial loss is ln(vocab) + kHeadGain^2 / 2. A
/// smaller value starts with a lower loss but learns more slowly.
constexpr double kHeadGain = 0.5;

}  // namespace

namespace {

void require_fitting(const MlpLayerOptions& o) {
  TESSERA_REQUIRE(
      o.ff >= 1 && o.shared_ff >= 0 && (o.shared_ff == 0 || o.experts > 0),
      "[transformer] ff {} and shared_ff {} beside {} experts; ff is at least 1, and an expert "
      "is shared only beside others",
      o.ff, o.shared_ff, o.experts);
  TESSERA_REQUIRE(o.experts >= 0 && (o.experts == 0 || !o.bias),
                  "[transformer] {} experts{}; experts have no biases", o.experts,
                  o.bias ? " with biases" : "");
  TESSERA_REQUIRE(
      o.experts == 0 || (o.choices >= 1 && o.choices <= o.experts),
      "[transformer] a token takes {} of {} experts; it takes at least 1 and at most all",
      o.choices, o.experts);
  TESSERA_REQUIRE(
      o.dispatch_capacity == 0 || o.dispatch_capacity >= 1,
      "[transformer] dispatch_capacity {} is a bound below the mean: with {} of {} experts for "
      "each "
      "token, only that share of the rows would have places if routing were even; give at least "
      "1, or 0 for places for all",
      o.dispatch_capacity, o.choices, o.experts);
}

void require_latent(const TransformerOptions& o) {
  const HeadOptions& h = o.heads;
  const LatentOptions& l = h.latent;
  TESSERA_REQUIRE(
      l.rank >= 1 && l.query_rank >= 0 && l.d_value >= 1 && l.d_rotary >= 1 &&
          l.d_rotary < h.d_head,
      "[transformer] latent attention of rank {}, with queries of rank {}, values of {} "
      "elements and {} rotated ones of {}; ranks and widths are positive, query_rank may be 0, "
      "and d_rotary is less than d_head",
      l.rank, l.query_rank, l.d_value, l.d_rotary, h.d_head);
  const bool grouped = h.key_heads != 0 && h.key_heads != h.count;
  const bool biased = h.query_bias || h.key_bias || h.value_bias;
  TESSERA_REQUIRE(
      !grouped && !biased && !h.norm && o.encoder_layers == 0,
      "[transformer] latent attention of rank {} with {}; it has neither: set that to 0 or "
      "false, or latent.rank to 0",
      l.rank,
      grouped  ? fmt::format("{} key heads", h.key_heads)
      : biased ? "biases of queries, keys or values"
      : h.norm ? "norms of queries and keys"
               : fmt::format("{} layers of an encoder", o.encoder_layers));
}

void require_ahead(const TransformerOptions& o) {
  TESSERA_REQUIRE(
      o.ahead.depth >= 0 && o.ahead.depth < o.length,
      "[transformer] {} modules for tokens further ahead in a length of {}; there are less than "
      "that, or 0",
      o.ahead.depth, o.length);
  TESSERA_REQUIRE(
      o.ahead.weight >= 0 && std::isfinite(o.ahead.weight),
      "[transformer] the loss of tokens further ahead has the weight {}; it is finite and not "
      "below 0",
      o.ahead.weight);
  const char* misfit = !o.causal                         ? "a model that sees what it predicts"
                       : o.encoder_layers > 0            ? "a decoder with an encoder"
                       : o.head_bias || o.head_transform ? "a head that is more than one matrix"
                                                         : nullptr;
  TESSERA_REQUIRE(
      o.ahead.depth == 0 || misfit == nullptr,
      "[transformer] {} modules for tokens further ahead, with {}; set ahead.depth to 0",
      o.ahead.depth, misfit ? misfit : "");
}

}  // namespace

void require_fitting(const TransformerOptions& o) {
  const int64_t key_heads = o.heads.key_heads == 0 ? o.heads.count : o.heads.key_heads;
  TESSERA_REQUIRE(
      o.layers >= 1 && o.d_model >= 1 && o.vocab >= 1 && o.length >= 1 && o.heads.d_head >= 1 &&
          o.mlp.ff >= 1,
      "[transformer] layers {}, d_model {}, vocab {}, length {}, d_head {}, ff {}; each is at "
      "least 1",
      o.layers, o.d_model, o.vocab, o.length, o.heads.d_head, o.mlp.ff);
  TESSERA_REQUIRE(o.heads.count >= 1 && key_heads >= 1 && o.heads.count % key_heads == 0,
                  "[transformer] {} heads cannot share {} key heads; take a divisor", o.heads.count,
                  key_heads);
  TESSERA_REQUIRE(
      !o.pattern.empty() && !o.spans.empty(),
      "[transformer] {} spans and a pattern of {} layers; there is at least one of each",
      o.spans.size(), o.pattern.size());
  for (const int k : o.pattern) {
    TESSERA_REQUIRE(k >= 0 && k < std::ssize(o.spans),
                    "[transformer] the pattern has span {}, but there are spans 0 to {}", k,
                    o.spans.size() - 1);
  }
  for (const SpanOptions& span : o.spans)
    TESSERA_REQUIRE(span.window >= 0, "[transformer] a window of {} keys; 0 is no window",
                    span.window);
  TESSERA_REQUIRE(
      !o.scan || o.can_scan(),
      "[transformer] scan makes a loop of layers of one kind that follow one another, but "
      "they are of {} kinds that take turns; set scan to false",
      o.spans.size());
  TESSERA_REQUIRE(
      !o.parallel || o.placement == NormPlacement::before,
      "[transformer] parallel blocks have their norm before them; placement is another");
  require_fitting(o.mlp);
  for (const SpanOptions& span : o.spans) {
    if (span.mlp) require_fitting(*span.mlp);
  }
  if (o.heads.latent.rank != 0) require_latent(o);
  const int64_t rows = o.positions == 0 ? o.length : o.positions;
  TESSERA_REQUIRE(!o.learned_positions || o.length <= rows,
                  "[transformer] length {} is more than the {} learned positions", o.length, rows);
  TESSERA_REQUIRE(
      o.relative_buckets >= 0 && o.token_types >= 0 && o.encoder_layers >= 0,
      "[transformer] relative_buckets {}, token_types {}, encoder_layers {}; none is below 0",
      o.relative_buckets, o.token_types, o.encoder_layers);
  TESSERA_REQUIRE(o.logits_cap >= 0 && std::isfinite(o.logits_cap),
                  "[transformer] logits_cap {}; it is positive and finite, or 0 for none",
                  o.logits_cap);
  const int64_t predicted = o.encoder_layers > 0 ? o.target_length : o.length;
  TESSERA_REQUIRE(o.loss_blocks >= 1 && predicted % o.loss_blocks == 0,
                  "[transformer] loss_blocks {} does not divide the length {}; take a divisor",
                  o.loss_blocks, predicted);
  TESSERA_REQUIRE(o.loss_blocks == 1 || (!o.head_bias && !o.head_transform),
                  "[transformer] loss_blocks {} needs a head that is one matrix; this one has {}",
                  o.loss_blocks, o.head_bias ? "a bias" : "a transformation before it");
  require_ahead(o);
  if (o.encoder_layers == 0) return;
  TESSERA_REQUIRE(
      o.target_length >= 1,
      "[transformer] a decoder behind {} layers of an encoder has target_length {}; it is at "
      "least 1",
      o.encoder_layers, o.target_length);
  TESSERA_REQUIRE(
      o.causal && !o.parallel && !o.learned_positions && o.token_types == 0 && !o.embedding_norm &&
          o.placement == NormPlacement::before,
      "[transformer] a model with an encoder is causal, has norms before its parts and "
      "relative or rotary positions, and is not parallel; set encoder_layers to 0, or change "
      "that");
}

Tensor projected(Tensor x, const char* name, const std::vector<std::string>& in, const Shape& out,
                 const TransformerOptions& o, bool bias, Loc at, double gain) {
  DenseOptions options;
  options.bias = bias;
  options.gain = gain;
  options.float8 = o.float8;
  options.lora = o.lora;
  return dense(x, name, in, out, options, at);
}

double residual_gain(const TransformerOptions& o) {
  return 1 / std::sqrt(2.0 * static_cast<double>(o.layers));
}

Tensor capped(Tensor x, double cap, Loc at) { return tanh(x / cap, at) * cap; }

namespace {
/// The dim of the tokens that are predicted.
Dim text_dim(const TransformerOptions& o) {
  return o.encoder_layers > 0 ? Dim("target_length", o.target_length) : Dim("length", o.length);
}
}  // namespace

SharedSpan placed_span(Graph& g, const TransformerOptions& o, const SpanOptions& span,
                       const Dim& length, Tensor positions, Loc at) {
  const DType exact = o.dtype == DType::float64 ? DType::float64 : DType::float32;
  const LatentOptions& latent = o.heads.latent;
  const Dim depth =
      latent.rank > 0 ? Dim("d_rotary", latent.d_rotary) : Dim("d_head", o.heads.d_head);
  SharedSpan shared;
  shared.length = length.name;
  shared.mlp = span.mlp;
  if (span.rotary)
    shared.rotary = rotary_table(g, length, depth, span.rotation, positions, exact, at);
  return shared;
}

SharedSpan shared_span(Graph& g, const TransformerOptions& o, const SpanOptions& span,
                       const PackedInputs& packed, Loc at) {
  const Dim length = text_dim(o);
  SharedSpan shared = placed_span(g, o, span, length, packed.positions, at);
  if (span.window > 0 && span.window < length.size) shared.window = span.window;
  shared.segments = packed.segments;
  return shared;
}

Tensor transformer_block(Tensor x, const TransformerOptions& o, const SharedSpan& span, Loc at) {
  return block_of(x, o, span, nullptr, at);
}

Tensor block_of(Tensor x, const TransformerOptions& o, const SharedSpan& span, LayerCache* cache,
                Loc at) {
  return on_behalf_of("transformer_block", at, [&] {
    const bool before = o.placement != NormPlacement::after,
               after = o.placement == NormPlacement::both;
    const auto normed = [&](Tensor t, const char* name) {
      return norm(t, name, "d_model", o.norm, at);
    };
    const auto drop = [&](Tensor t) { return o.dropout > 0 ? dropout(t, o.dropout, at) : t; };
    const auto fed = [&](Tensor t) {
      if (!span.mlp) return mlp_layer(t, o, at);
      TransformerOptions own = o;
      own.mlp = *span.mlp;
      return mlp_layer(t, own, at);
    };
    if (o.parallel) {
      TESSERA_REQUIRE(
          span.memory.empty(),
          "[transformer_block] a parallel block reads no memory; set parallel to false ({})",
          where(at));
      Tensor in = normed(x, "norm1"), seen = attention_of(in, o, span, cache, at);
      return add(x, drop(add(seen, fed(in), at)), at);
    }
    Tensor part = attention_of(before ? normed(x, "norm1") : x, o, span, cache, at);
    if (after) part = normed(part, "norm1_after");
    x = add(x, drop(part), at);
    if (!before) x = normed(x, "norm1");
    if (!span.memory.empty() || (cache && !cache->is_source.empty()))
      x = add(x, drop(cross_attention_of(normed(x, "norm_cross"), o, span, cache, at)), at);
    part = fed(before ? normed(x, "norm2") : x);
    if (after) part = normed(part, "norm2_after");
    x = add(x, drop(part), at);
    return before ? x : normed(x, "norm2");
  });
}

namespace {
/// In the dtype of the parameters.
Tensor scaled_embeddings(const TransformerOptions& o, Tensor tokens, Tensor embedding) {
  Tensor x = gather(embedding, tokens, "vocab");
  if (o.embedding_scale == 1) return x;
  // Rounded as the activations are: Gemma multiplies in their dtype.
  return mul(x, read_as(constant(x.graph(), o.embedding_scale, o.dtype), stored_dtype(o.dtype)));
}
}  // namespace

Tensor embedded_tokens(const TransformerOptions& o, Tensor tokens, Tensor embedding) {
  return read_as(scaled_embeddings(o, tokens, embedding), o.dtype);
}

Tensor embedded(Graph& g, const TransformerOptions& o, Tensor inputs, Tensor embedding,
                Tensor positions) {
  const DType stored = stored_dtype(o.dtype);
  Tensor x = scaled_embeddings(o, inputs, embedding);
  if (o.token_types > 0) {
    const Dim types("token_types", o.token_types);
    Tensor table =
        g.parameter("token_type", {types, embedding.dim("d_model")}, normal(0.02), stored);
    x = x + reshape(slice(table, types.name, 0, 1), Shape{embedding.dim("d_model")});
  }
  if (o.learned_positions) {
    const Dim rows = o.positions == 0 ? Dim("length", o.length) : Dim("positions", o.positions);
    Tensor table = g.parameter("position", {rows, embedding.dim("d_model")}, normal(0.02), stored);
    if (!positions.empty()) {
      if (o.positions == 0) table = rename(table, "length", "positions");
      x = x + gather(table, positions, "positions", OutOfRange::clamp);
    } else {
      if (o.positions > o.length) table = slice(table, "positions", 0, o.length);
      x = x + (o.positions == 0 ? table : rename(table, "positions", "length"));
    }
  }
  if (o.dtype != stored) x = cast(x, o.dtype);
  if (o.embedding_norm) x = norm(x, "embedding_norm", "d_model", o.norm);
  return o.dropout > 0 ? dropout(x, o.dropout) : x;
}

Tensor head_weights(Tensor x, const TransformerOptions& o, Tensor embedding) {
  if (o.tied) return read_as(embedding, x.dtype());
  Tensor w = parameter_for(x, "head.w", Shape{x.dim("d_model"), embedding.dim("vocab")},
                           scaled_normal({"d_model"}, kHeadGain), Loc::current());
  // Only where it is named, as in PEFT.
  return o.lora.targets.empty() ? w : adapted(w, x, "head", {"d_model"}, o.lora);
}

Tensor logits_of(Tensor x, const TransformerOptions& o, Tensor weights) {
  if (o.head_transform) {
    const Dim inner("d_transform", o.d_model);
    x = dense(x, "head_transform", {"d_model"}, Shape{inner});
    x = rename(activate(x, o.mlp.activation), inner.name, "d_model");
    x = norm(x, "head_norm", "d_model", o.norm);
  }
  const Shape vocab{weights.dim("vocab")};
  Tensor logits = einsum({x, weights}, x.shape().without({"d_model"}).united(vocab));
  if (o.head_bias) logits = logits + parameter_for(x, "head.b", vocab, zeros(), Loc::current());
  if (o.logits_scale != 1) logits = logits * o.logits_scale;
  if (o.logits_cap > 0) logits = capped(logits, o.logits_cap, Loc::current());
  return logits;
}

Tensor relative_table(Graph& g, const TransformerOptions& o) {
  const Shape buckets{Dim("relative_buckets", o.relative_buckets)};
  return g.parameter("relative.w", buckets.united(head_dims(o.heads).query.without({"d_head"})),
                     normal(0.02), stored_dtype(o.dtype));
}

namespace {

/// The biases [relative_distances, heads...] of all layers.
Tensor relative_biases(Graph& g, const TransformerOptions& o) {
  RelativeOptions relative{o.relative_buckets, o.relative_distance, !o.causal};
  return relative_distances(g, "relative", head_dims(o.heads).query.without({"d_head"}), relative,
                            stored_dtype(o.dtype));
}

}  // namespace

std::vector<SharedSpan> shared_spans(Graph& g, const TransformerOptions& o,
                                     const PackedInputs& packed, Tensor memory,
                                     Tensor memory_segments) {
  Tensor by_distance;
  if (o.relative_buckets > 0) by_distance = relative_biases(g, o);
  std::vector<SharedSpan> shared(o.spans.size());
  for (size_t k = 0; k < shared.size(); ++k) {
    if (std::count(o.pattern.begin(), o.pattern.end(), static_cast<int>(k)) == 0) continue;
    shared[k] = shared_span(g, o, o.spans[k], packed);
    shared[k].by_distance = by_distance;
    shared[k].memory = memory;
    shared[k].memory_segments = memory_segments;
  }
  return shared;
}

Tensor through_blocks(Graph& g, const TransformerOptions& o, const std::vector<SharedSpan>& spans,
                      Tensor x, Tensor* before_last) {
  for (const LayerRun& run : layer_runs(o)) {
    const SharedSpan& span = spans[static_cast<size_t>(o.kind_of(run.first))];
    if (before_last && run.first == o.layers - 1) *before_last = x;
    if (run.is_loop) {
      x = repeat({"layers", run.count}, x, [&](Tensor t) {
        const Scope scope(g, run.block);
        return transformer_block(t, o, span);
      });
    } else {
      const Scope scope(g, "block", run.first, o.layers);
      x = transformer_block(x, o, span);
    }
  }
  return x;
}

namespace {

/// What the last norm makes of what the blocks give.
Tensor last_norm(Tensor x, const TransformerOptions& o) {
  return o.placement == NormPlacement::after ? x : norm(x, "norm", "d_model", o.norm);
}

}  // namespace

Tensor one_of(const Tensor& x, DType dtype) {
  double fixed = 1;
  for (const Dim& dim : x.shape()) {
    if (!dim.is_bounded) fixed *= static_cast<double>(dim.size);
  }
  Tensor share = constant(x.graph(), 1 / fixed, dtype);
  for (const Dim& dim : x.shape()) {
    if (dim.is_bounded) share = share / dim_size(x.graph(), dim, dtype);
  }
  return share;
}

LinearCrossEntropyOptions loss_blocks_of(const TransformerOptions& o, const std::string& length) {
  LinearCrossEntropyOptions blocks;
  blocks.dim = length;
  blocks.blocks = o.loss_blocks;
  blocks.scale = o.logits_scale;
  blocks.cap = o.logits_cap;
  return blocks;
}

Tensor encoded(Graph& g, const TransformerOptions& o, Tensor sources, Tensor embedding,
               Tensor segments) {
  const Scope scope(g, "encoder");
  TransformerOptions encoder = o;
  encoder.layers = o.encoder_layers;
  encoder.encoder_layers = 0;
  encoder.causal = false;
  encoder.length = sources.dim("length").size;
  Tensor x = embedded(g, encoder, sources, embedding, {});
  return last_norm(through_blocks(g, encoder, shared_spans(g, encoder, {segments}), x), o);
}

Model transformer(Graph& g, const TransformerOptions& o) {
  require_fitting(o);
  if (o.image.classes > 0) return image_classifier(g, o);
  const Dim batch = batch_dim(o.batch, o.partial_batch), length("length", o.length);
  const Dim d_model("d_model", o.d_model), vocab("vocab", o.vocab);
  const bool has_encoder = o.encoder_layers > 0, is_weighted = o.packed || o.weighted;
  Model model;
  const auto input = [&](const char* name, const Dim& along, DType dtype) {
    return model.inputs.emplace_back(g.input(name, {batch, along}, dtype));
  };
  const Dim text = text_dim(o);
  Tensor inputs = input("inputs", length, DType::int32), sources = inputs, weights;
  if (has_encoder) inputs = input("decoder_inputs", text, DType::int32);
  Tensor targets = input("targets", text, DType::int32);
  PackedInputs packed;
  Tensor source_segments;
  if (o.packed && has_encoder) {
    source_segments = input("segments", length, DType::int32);
    packed.segments = input("decoder_segments", text, DType::int32);
  } else if (o.packed) {
    packed = {input("segments", length, DType::int32), input("positions", length, DType::int32)};
  }
  if (is_weighted) weights = input("weights", text, DType::float32);
  Scope scope(g, o.name);
  Tensor embedding =
      g.parameter("embedding", {vocab, d_model}, normal(0.02), stored_dtype(o.dtype));
  Tensor memory;
  if (has_encoder) memory = encoded(g, o, sources, embedding, source_segments);
  Tensor x = embedded(g, o, inputs, embedding, packed.positions), before_last;
  const std::vector<SharedSpan> spans = shared_spans(g, o, packed, memory, source_segments);
  x = last_norm(through_blocks(g, o, spans, x, &before_last), o);
  Tensor head = head_weights(x, o, embedding);
  model.logits = logits_of(x, o, head).named("logits");
  if (o.causal && !has_encoder) model.tokens = inputs;
  const DType exact = o.dtype == DType::float64 ? DType::float64 : DType::float32;
  if (o.loss_blocks > 1) {
    model.loss =
        linear_cross_entropy(x, head, targets, is_weighted ? weights : one_of(targets, exact),
                             loss_blocks_of(o, text.name));
  } else {
    Tensor losses = cross_entropy(model.logits, targets, "vocab");
    model.loss = is_weighted ? sum_all(mul(read_as(losses, exact), read_as(weights, exact)))
                             : mean_all(losses);
  }
  if (is_weighted) model.weight = sum_all(weights).named("weight");
  if (o.ahead.depth > 0) {
    Tensor ahead = loss_ahead(
        g, o, spans, {inputs, targets, weights, packed.segments, embedding, head, x, before_last});
    model.metrics = {{"next_loss", model.loss, model.weight}, {"ahead_loss", ahead, model.weight}};
    model.loss = model.loss + ahead * o.ahead.weight;
  }
  model.loss = model.loss.named("loss");
  require_adapted(g, o.lora, g.scope());
  return model;
}

}  // namespace tessera::nn
