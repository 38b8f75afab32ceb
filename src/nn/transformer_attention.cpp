// The attention of a transformer's blocks: to the text itself, and to what an encoder made of
// another.
#include <cmath>
#include <utility>

#include "base/fail.h"
#include "nn/stored.h"
#include "nn/transformer_parts.h"

namespace tessera::nn {

HeadDims head_dims(const HeadOptions& o) {
  const int64_t kept = o.key_heads == 0 ? o.count : o.key_heads;
  const Dim depth("d_head", o.d_head), all("heads", o.count), some("heads", kept);
  const auto of = [&](const Shape& query, const Shape& key) {
    return HeadDims{query, key, key, query};
  };
  if (o.latent.rank > 0) {
    const Shape value{all, Dim("d_value", o.latent.d_value)};
    return {{all, depth}, {all, depth}, value, value};
  }
  if (kept == o.count) return of({all, depth}, {all, depth});
  if (kept == 1) return of({all, depth}, Shape{depth});
  return of({some, Dim("heads_per_key", o.count / kept), depth}, {some, depth});
}

CachedDims cached_dims(const HeadOptions& o, bool as_trained) {
  if (o.latent.rank == 0 || as_trained) return {head_dims(o).key, head_dims(o).value};
  return {Shape{Dim("d_rotary", o.latent.d_rotary)}, Shape{Dim("d_latent", o.latent.rank)}};
}

namespace {

/// Without the usual scale of the logits, as in T5, the initial weights have it.
Tensor query_of(Tensor x, const TransformerOptions& o, Loc at) {
  const double usual = 1 / std::sqrt(static_cast<double>(o.heads.d_head));
  return projected(x, "query", {"d_model"}, head_dims(o.heads).query, o, o.heads.query_bias, at,
                   o.heads.scale == 0 ? 1 : usual / o.heads.scale);
}

Tensor out_of(Tensor seen, Tensor x, const TransformerOptions& o, Loc at) {
  return projected(seen.named("seen"), "out", head_dims(o.heads).seen.names(),
                   Shape{x.dim("d_model")}, o, o.heads.out_bias, at, residual_gain(o));
}

AttentionOperands operands_of(Tensor x, const TransformerOptions& o, const SharedSpan& span,
                              Loc at) {
  const HeadDims heads = head_dims(o.heads);
  const auto placed = [&](Tensor t, const char* norm_name) {
    if (o.heads.norm) {
      NormOptions each = o.norm;
      each.kind = NormOptions::Kind::rms;
      t = norm(t, norm_name, "d_head", each, at);
    }
    return span.rotary.cos.empty() ? t : rotary(t, "d_head", span.rotary, at);
  };
  AttentionOperands in;
  in.query = placed(query_of(x, o, at), "query_norm");
  // Without positions, norm or cap behind it a bias of the keys cancels in the softmax: its
  // gradient is 0, and only rounding would train it.
  const bool cancels =
      span.rotary.cos.empty() && !o.heads.norm && o.heads.soft_cap == 0 && !o.heads.sinks;
  Tensor key = projected(x, "key", {"d_model"}, heads.key, o, o.heads.key_bias && !cancels, at);
  if (o.heads.key_bias && cancels) {
    Tensor bias = parameter_for(x, "key.b", heads.key, zeros(), at);
    key = add(key, stop_gradient(bias, at), at);
  }
  in.key = placed(key, "key_norm");
  in.value = projected(x, "value", {"d_model"}, heads.value, o, o.heads.value_bias, at);
  return in;
}

/// Attention of a step's queries to all keys of a cache, by the ops that attention() consists of.
Tensor attention_from(Tensor query, const LayerCache& cache, AttentionOptions options, Loc at) {
  const CacheSlots& slots = *cache.slots;
  const Tensor sinks = std::exchange(options.sinks, {});
  options.causal = true;
  if (slots.window > 0) options.window = slots.window;
  const AttentionPart seen = attention_part(query, cache.new_key, cache.new_value, slots.starts,
                                            constant(query.graph(), 0, DType::int32, {}, at),
                                            cache.new_key.dim("memory_length").size, options, at);
  if (sinks.empty()) return seen.out;
  const DType exact = seen.log_sum.dtype();
  const Tensor share = sigmoid(seen.log_sum - read_as(sinks, exact, at), at);
  return read_as(mul(read_as(seen.out, exact, at), share, at), seen.out.dtype(), at);
}

}  // namespace

Tensor attention_of(Tensor x, const TransformerOptions& o, const SharedSpan& span,
                    LayerCache* cache, Loc at) {
  return on_behalf_of("attention_layer", at, [&] {
    Scope scope(x.graph(), "attention");
    const bool is_latent = o.heads.latent.rank > 0;
    const bool is_whole = cache == nullptr || cache->slots->as_trained;
    AttentionOperands in =
        is_latent ? latent_operands(x, o, span, !is_whole, at) : operands_of(x, o, span, at);
    if (o.heads.sinks)
      in.sinks =
          parameter_for(x, "sinks", head_dims(o.heads).query.without({"d_head"}), zeros(), at);
    if (!is_whole) {
      Tensor seen = cached_attention(in, o, *cache, at);
      return out_of(is_latent ? values_of_latents(seen, o, at) : seen, x, o, at);
    }
    BiasedOptions options;
    options.scale = o.heads.scale;
    options.dropout = o.dropout;
    options.soft_cap = o.heads.soft_cap;
    options.sinks = in.sinks;
    if (cache) {
      const CacheSegment& all = cache->slots->segments[0];
      cache->new_key = cache_with(cache->kept[0].key, in.key, all, span.length, at);
      cache->new_value = cache_with(cache->kept[0].value, in.value, all, span.length, at);
      options.length = "query_length";
      options.bias = all.bias_of_seen;
      const Tensor query = rename(in.query, span.length, options.length, at),
                   seen = options.bias.empty()
                              ? attention_from(query, *cache, options, at)
                              : biased_attention(query, cache->new_key, cache->new_value, all.seen,
                                                 options, at);
      return out_of(rename(seen, options.length, span.length, at), x, o, at);
    }
    // Keys and values are renamed after the projections: if `length` is split, ranks project their
    // slices and gather keys.
    const Tensor key = rename(in.key, span.length, "memory_length", at),
                 value = rename(in.value, span.length, "memory_length", at);
    options.length = span.length;
    options.causal = o.causal;
    options.window = span.window;
    options.segments = span.segments;
    options.bias = span.bias;
    options.by_distance = span.by_distance;
    return out_of(biased_attention(in.query, key, value, {}, options, at), x, o, at);
  });
}

Tensor cross_attention_of(Tensor x, const TransformerOptions& o, const SharedSpan& span,
                          LayerCache* cache, Loc at) {
  return on_behalf_of("cross_attention_layer", at, [&] {
    Scope scope(x.graph(), "cross");
    const KeyValue memory = cache ? cache->memory : cross_keys(span.memory, o, at);
    AttentionOptions options;
    // Rules may split the length of keys and that of queries over one axis: of a cache the keys
    // win.
    options.length = cache ? "query_length" : span.length;
    options.scale = o.heads.scale;
    options.dropout = o.dropout;
    options.soft_cap = o.heads.soft_cap;
    options.segments = span.segments;
    if (!span.memory_segments.empty())
      options.memory_segments = rename(span.memory_segments, "length", "memory_length", at);
    Tensor query = query_of(x, o, at);
    if (cache) {
      query = rename(query, span.length, options.length, at);
      options.memory_segments = cache->is_source;
      options.segments = constant(x.graph(), 1, DType::int32,
                                  {cache->is_source.shape()[0], query.dim(options.length)}, at);
    }
    Tensor seen = attention(query, memory.key, memory.value, {}, options, at);
    if (cache) seen = rename(seen, options.length, span.length, at);
    return out_of(seen, x, o, at);
  });
}

KeyValue cross_keys(Tensor memory, const TransformerOptions& o, Loc at) {
  const Shape heads = head_dims(o.heads).key;
  const auto of = [&](const char* name, bool bias) {
    return rename(projected(memory, name, {"d_model"}, heads, o, bias, at), "length",
                  "memory_length", at);
  };
  Tensor key = of("key", o.heads.key_bias);
  return {key, of("value", o.heads.value_bias)};
}

Tensor cross_attention_layer(Tensor x, const TransformerOptions& o, const SharedSpan& span,
                             Loc at) {
  return cross_attention_of(x, o, span, nullptr, at);
}

Tensor attention_layer(Tensor x, const TransformerOptions& o, const SharedSpan& span, Loc at) {
  return attention_of(x, o, span, nullptr, at);
}

}  // namespace tessera::nn
