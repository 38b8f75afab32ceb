// Latent attention: what attention reads of keys and values is a product of the latent. Training
// computes keys and values of the heads. Decoding keeps latents, and needs no keys and values: with
// key = W latent the product of query and key is that of (query W) and latent, and the weighted sum
// of values that of latents, multiplied once.
#include "base/fail.h"
#include "nn/stored.h"
#include "nn/transformer_parts.h"

namespace tessera::nn {

namespace {

/// x in few dims, with a norm.
Tensor latent_of(Tensor x, const char* name, const Dim& rank, const TransformerOptions& o, Loc at) {
  Tensor low = projected(x, name, {"d_model"}, Shape{rank}, o, false, at);
  return norm(low, std::string(name) + "_norm", rank.name, o.heads.latent.norm, at);
}

Tensor placed(Tensor x, const SharedSpan& span, Loc at) {
  return span.rotary.cos.empty() ? x : rotary(x, "d_rotary", span.rotary, at);
}

/// Both parts of queries or keys in one dim.
Tensor joined(Tensor plain, Tensor rotary, Loc at) {
  return concat({rename(plain, "d_plain", "d_head", at), rename(rotary, "d_rotary", "d_head", at)},
                "d_head", at);
}

struct LatentDims {
  Dim heads, latent, plain, rotary, value;
};
LatentDims latent_dims(const HeadOptions& o) {
  const LatentOptions& l = o.latent;
  return {{"heads", o.count},
          {"d_latent", l.rank},
          {"d_plain", o.d_head - l.d_rotary},
          {"d_rotary", l.d_rotary},
          {"d_value", l.d_value}};
}

/// The weights of projected(latent, name, {"d_latent"}, out).
Tensor weights_of(Tensor latent, const char* name, const Shape& out, const TransformerOptions& o,
                  Loc at) {
  const Shape dims = Shape{latent_dims(o.heads).latent}.united(out);
  Tensor w = parameter_for(latent, std::string(name) + ".w", dims, scaled_normal({"d_latent"}), at);
  return adapted(w, latent, name, {"d_latent"}, o.lora, {}, at);
}

}  // namespace

AttentionOperands latent_operands(Tensor x, const TransformerOptions& o, const SharedSpan& span,
                                  bool for_cache, Loc at) {
  const LatentDims d = latent_dims(o.heads);
  const int64_t query_rank = o.heads.latent.query_rank;
  const Dim low("d_query_latent", query_rank);
  const Tensor asked = query_rank > 0 ? latent_of(x, "query_latent", low, o, at) : x;
  const std::vector<std::string> from = {query_rank > 0 ? low.name : "d_model"};
  const Tensor query = projected(asked, "query", from, {d.heads, d.plain}, o, false, at),
               query_rotary =
                   placed(projected(asked, "query_rotary", from, {d.heads, d.rotary}, o, false, at),
                          span, at);
  const Tensor latent = latent_of(x, "latent", d.latent, o, at);
  const Tensor key_rotary =
      placed(projected(x, "key_rotary", {"d_model"}, Shape{d.rotary}, o, false, at), span, at);
  if (for_cache) {
    const Tensor w = weights_of(latent, "key", {d.heads, d.plain}, o, at);
    const Shape dims = query.shape().without({d.plain.name}).united(Shape{d.latent});
    return {query_rotary, key_rotary, latent, einsum({query, w}, dims, at)};
  }
  const auto of_heads = [&](const char* name, const Dim& width) {
    return projected(latent, name, {"d_latent"}, {d.heads, width}, o, false, at);
  };
  const Tensor key = of_heads("key", d.plain);
  const Shape shared = key.shape().without({d.plain.name}).united(Shape{d.rotary});
  return {joined(query, query_rotary, at), joined(key, broadcast(key_rotary, shared, at), at),
          of_heads("value", d.value)};
}

Tensor values_of_latents(Tensor sums, const TransformerOptions& o, Loc at) {
  const LatentDims d = latent_dims(o.heads);
  const Tensor w = weights_of(sums, "value", {d.heads, d.value}, o, at);
  return einsum({sums, w}, sums.shape().without({d.latent.name}).united(Shape{d.value}), at);
}

}  // namespace tessera::nn
