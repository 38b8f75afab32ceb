// Attention as parts that are joined: with a prefix, what all queries see of it and what they see
// behind it; with sinks, the keys and one more of value 0. Both are parts of a softmax, and
// log_sum says how much of the whole each is, so no kernel has to know of them.
#include "ops/attention.h"
#include "ops/precision.h"

namespace tessera {

namespace {

AttentionPart whole(const Tensor& query, const Tensor& key, const Tensor& value,
                    const AttentionOptions& o, const Attrs& dropout, Loc at) {
  std::vector<Tensor> in = {query, key, value};
  for (const Tensor& t : structure_of(query, o)) in.push_back(t);
  Attrs attrs = attention_attrs(query, key, value, o);
  add(attrs, dropout);
  const std::vector<Tensor> out = query.graph().add(kAttention, in, std::move(attrs), at);
  return {out[0], out[1]};
}

/// Keys of one part are padding in the other.
AttentionPart with_prefix(const Tensor& query, const Tensor& key, const Tensor& value,
                          const AttentionOptions& o, const Attrs& dropout, Loc at) {
  Graph& g = query.graph();
  const Tensor none = constant(g, 0, DType::int32), one = constant(g, 1, DType::int32);
  AttentionOptions inside = o, behind = o;
  if (o.segments.empty())
    inside.segments = behind.segments = broadcast(one, Shape{query.dim(o.length)});
  const Tensor ids = o.segments.empty() ? one : segments_of(o)[1];
  const Tensor is_inside = iota(g, key.dim(o.memory_length)) < o.prefix;
  inside.memory_segments = where(is_inside, ids, none);
  behind.memory_segments = where(is_inside, none, ids);
  inside.causal = false;
  inside.window = {};
  return join(whole(query, key, value, inside, dropout, at),
              whole(query, key, value, behind, dropout, at));
}

}  // namespace

Tensor joined_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                        const AttentionOptions& o, const Attrs& dropout, Loc at) {
  const AttentionPart seen = o.prefix.empty() ? whole(query, key, value, o, dropout, at)
                                              : with_prefix(query, key, value, o, dropout, at);
  if (o.sinks.empty()) return seen.out;
  const Tensor share = sigmoid(seen.log_sum - narrow(o.sinks, seen.log_sum.dtype()));
  return narrow(wide(seen.out) * share, seen.out.dtype());
}

}  // namespace tessera
