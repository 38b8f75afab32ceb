// A query sees the tokens before the step, which are in the segments of the cache, and those of the
// step, which are not yet: the softmax goes over all. The cache is written when the step has read
// it, so that a cache of `window` tokens is enough for a window, whatever the length of the step.
#include <cmath>

#include "base/fail.h"
#include "nn/stored.h"
#include "nn/transformer_parts.h"

namespace tessera::nn {

namespace {

constexpr double kUnseen = -1e30;  // a finite logit, so that no query gets NaN

Tensor whole_number(Graph& g, int64_t value, Loc at) {
  return constant(g, static_cast<double>(value), DType::int32, {}, at);
}

/// The last number below `end` that is `place` modulo `slots`.
Tensor last_below(Tensor end, Tensor place, int64_t slots, Loc at) {
  Graph& g = end.graph();
  Tensor last = sub(end, whole_number(g, 1, at), at);
  return sub(last, mod(sub(last, place, at), whole_number(g, slots, at), at), at);
}

}  // namespace

CacheSlots cache_slots(Tensor starts, Tensor counts, const Dim& length, int64_t slots,
                       int64_t window, const std::vector<int64_t>& ends, bool as_trained, Loc at) {
  Graph& g = starts.graph();
  const Dim batch = starts.shape()[0];
  const Dim query = length.renamed("query_length"), own = length.renamed("new_length");
  const Tensor zero = whole_number(g, 0, at), all = whole_number(g, window, at);
  const Tensor row = rename(iota(g, length, DType::int32, at), length.name, query.name, at),
               column = rename(row, query.name, own.name, at);
  const Tensor from = add(broadcast(starts, {batch, query}, at), row, at);
  CacheSlots result;
  result.as_trained = as_trained;
  result.starts = starts;
  result.window = window;
  result.length = length.name;
  result.back = sub(broadcast(row, {query, own}, at), column, at);
  result.inside = greater_equal(result.back, zero, at);
  if (window > 0) result.inside = logical_and(result.inside, less(result.back, all, at), at);
  int64_t first = 0;
  for (const int64_t end : ends) {
    const Dim memory("memory_length", end - first);
    CacheSegment s;
    s.first = first, s.size = end - first;
    Tensor place = iota(g, memory, DType::int32, at);
    if (first > 0) place = add(place, whole_number(g, first, at), at);
    const Tensor held =
        as_trained ? place : last_below(broadcast(starts, {batch, memory}, at), place, slots, at);
    s.behind = sub(broadcast(from, {batch, query, memory}, at), held, at);
    s.seen = as_trained ? greater_equal(s.behind, zero, at)
                        : broadcast(greater_equal(held, zero, at), {batch, query, memory}, at);
    if (window > 0) s.seen = logical_and(s.seen, less(s.behind, all, at), at);
    // Token j of the step is token starts + j of the row.
    const Tensor source =
        last_below(broadcast(counts, {batch, memory}, at),
                   sub(place, broadcast(starts, {batch, memory}, at), at), slots, at);
    s.hit = greater_equal(source, zero, at);
    s.source = maximum(source, zero, at);
    result.segments.push_back(std::move(s));
    first = end;
  }
  return result;
}

Tensor cached_attention(const AttentionOperands& in, const TransformerOptions& o, LayerCache& cache,
                        Loc at) {
  return on_behalf_of("cached_attention", at, [&] {
    Graph& g = in.query.graph();
    const CacheSlots& slots = *cache.slots;
    // Rules may split the length of keys and that of queries over one axis: here the keys win.
    const auto asking = [&](Tensor t) { return rename(t, slots.length, "query_length", at); };
    const Tensor query = asking(in.query),
                 of_latent = in.latent_query.empty() ? Tensor() : asking(in.latent_query);
    // The result has the values' width.
    const Shape result_shape = (of_latent.empty() ? query : of_latent).shape();
    cache.new_key = in.key, cache.new_value = in.value;
    const DType exact = query.dtype() == DType::float64 ? DType::float64 : DType::float32;
    const double scale =
        o.heads.scale != 0 ? o.heads.scale : 1 / std::sqrt(static_cast<double>(o.heads.d_head));
    const std::string depth = cached_dims(o.heads, false).key.names().back();
    const auto logits = [&](const KeyValue& of, const char* memory, Tensor seen, Tensor bias) {
      std::vector<Dim> dims = query.shape().without({"query_length", depth}).dims();
      dims.push_back(query.dim("query_length"));
      dims.push_back(of.key.dim(memory));
      Tensor x = read_as(einsum({query, of.key}, Shape(dims), at), exact, at);
      if (!of_latent.empty())
        x = add(x, read_as(einsum({of_latent, of.value}, Shape(dims), at), exact, at), at);
      x = x * scale;
      if (o.heads.soft_cap > 0) x = capped(x, o.heads.soft_cap, at);
      if (!bias.empty()) x = add(x, read_as(bias, exact, at), at);
      return where(seen, x, constant(g, kUnseen, exact, {}, at), at);
    };
    // Keys and values, and weights: first the logits, then their exponentials.
    struct Part {
      KeyValue of;
      const char* memory;
      Tensor weights;
    };
    std::vector<Part> parts;
    for (size_t i = 0; i < slots.segments.size(); ++i) {
      const CacheSegment& segment = slots.segments[i];
      const KeyValue& kept = cache.kept[i];
      parts.push_back({kept, "memory_length",
                       logits(kept, "memory_length", segment.seen, segment.bias_of_seen)});
    }
    const KeyValue fresh{rename(in.key, slots.length, "new_length", at),
                         rename(in.value, slots.length, "new_length", at)};
    parts.push_back(
        {fresh, "new_length", logits(fresh, "new_length", slots.inside, slots.bias_of_inside)});
    Tensor most = in.sinks.empty() ? Tensor() : read_as(in.sinks, exact, at), sum;
    const Tensor sinks = most;
    for (const Part& part : parts) {
      const Tensor of_part = reduce_max(part.weights, part.memory, at);
      most = most.empty() ? of_part : maximum(most, of_part, at);
    }
    for (Part& part : parts) {
      part.weights = exp(sub(part.weights, most, at), at);
      const Tensor of_part = reduce_sum(part.weights, part.memory, at);
      sum = sum.empty() ? of_part : add(sum, of_part, at);
    }
    if (!sinks.empty()) sum = add(sum, exp(sub(sinks, most, at), at), at);
    Tensor result;
    for (const Part& part : parts) {
      const Tensor weights = read_as(div(part.weights, sum, at), query.dtype(), at);
      const Tensor of_part = einsum({weights, part.of.value}, result_shape, at);
      result = result.empty() ? of_part : add(result, of_part, at);
    }
    return rename(result, "query_length", slots.length, at);
  });
}

Tensor cache_with(Tensor cache, Tensor tokens, const CacheSegment& segment,
                  const std::string& length, Loc at) {
  return on_behalf_of("cache_with", at, [&] {
    const Tensor hit = broadcast(segment.hit, cache.shape(), at);
    if (tokens.dim(length).size == 1)  // the same token at every hit
      return where(hit, broadcast(reduce_sum(tokens, length, at), cache.shape(), at), cache, at);
    Tensor placed = gather(tokens, segment.source, length, OutOfRange::error, at);
    if (placed.shape() != cache.shape()) placed = transpose(placed, cache.shape(), at);
    return where(hit, placed, cache, at);
  });
}

}  // namespace tessera::nn
