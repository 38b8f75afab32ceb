#include <cmath>

#include "base/misspelt.h"
#include "base/sizes.h"
#include "nn/stored.h"
#include "tessera/nn_attention.h"

namespace tessera::nn {

namespace {

/// Masked logits: a large negative number that stays finite.
constexpr double kLowest = -1e30;

void require_rate(const char* what, double dropout, Loc at) {
  TESSERA_REQUIRE(dropout >= 0 && dropout < 1, "[{}] dropout {} is not in [0, 1) ({})", what,
                  dropout, where(at));
}

Tensor wide(Tensor x) { return is_narrow(x.dtype()) ? cast(x, DType::float32) : x; }

/// Throws a usage error for a dim of one operand that is misspelt in another. Those that the
/// options name are meant.
void require_spelt(Tensor query, Tensor key, Tensor value, Tensor mask, const AttentionOptions& o) {
  const std::vector<std::string> meant = {o.length, o.memory_length, o.key_dim};
  require_no_misspelling(query.shape(), key.shape(), meant);
  if (!value.empty()) require_no_misspelling(query.shape(), value.shape(), meant);
  const Shape logits = query.shape().united(key.shape()).without({o.key_dim});
  if (!mask.empty()) require_no_misspelling(logits, mask.shape(), meant);
  for (const Tensor& t :
       {o.segments, o.memory_segments, o.prefix, o.sinks, o.slopes, o.by_distance}) {
    if (!t.empty()) require_no_misspelling(query.shape(), t.shape(), meant);
  }
}

/// All dims of query and key except the contracted one; key positions last.
Shape logit_dims(Tensor query, Tensor key, const AttentionOptions& o) {
  const Shape both = query.shape().united(key.shape());
  std::vector<Dim> dims = both.without({o.key_dim, o.memory_length}).dims();
  dims.push_back(key.dim(o.memory_length));
  return Shape(dims);
}

double scale_of(Tensor query, const AttentionOptions& o) {
  TESSERA_REQUIRE(std::isfinite(o.scale),
                  "a scale of {}; it is finite, or 0 for 1 / sqrt(size of '{}')", o.scale,
                  o.key_dim);
  if (o.scale != 0) return o.scale;
  return 1 / std::sqrt(static_cast<double>(query.dim(o.key_dim).size));
}

/// What the options let a query see; empty if that is everything.
Tensor structure_mask(Graph& g, const Dim& length, const Dim& memory, const AttentionOptions& o,
                      Loc at) {
  Tensor seen;
  const auto also = [&](Tensor t) { seen = seen.empty() ? t : logical_and(seen, t, at); };
  if (o.causal) also(causal_mask(g, length, memory, at));
  if (o.window) {
    TESSERA_REQUIRE(*o.window >= 1, "a window of {} keys; a query sees at least itself: 1 or more",
                    *o.window);
    also(window_mask(g, length, memory, *o.window - 1, *o.window - 1, at));
  }
  if (!o.prefix.empty()) {
    TESSERA_REQUIRE(o.causal, "there is a prefix {}, but attention is not causal",
                    o.prefix.shape().to_string());
    seen = logical_or(seen, less(iota(g, memory, DType::int32, at), o.prefix, at), at);
  }
  if (!o.segments.empty())
    also(segment_mask(o.segments,
                      o.memory_segments.empty() ? rename(o.segments, o.length, o.memory_length, at)
                                                : o.memory_segments,
                      at));
  return seen;
}

/// Where a query looks: what the options and the mask leave, and a bias above -infinity. Empty:
/// everywhere.
class Seen {
 public:
  Seen(Tensor logits, Tensor mask, Tensor bias, const AttentionOptions& o, Loc at) : at_(at) {
    TESSERA_REQUIRE(mask.empty() || !mask.shape().has(o.key_dim),
                    "the mask has the dim '{}'; logits are {}", o.key_dim,
                    logits.shape().to_string());
    Graph& g = logits.graph();
    seen_ = structure_mask(g, logits.dim(o.length), logits.dim(o.memory_length), o, at);
    also(mask);
    if (!bias.empty()) also(greater(bias, constant(g, -INFINITY, bias.dtype(), {}, at), at));
    may_hide_all_ = o.window || !o.segments.empty() || !mask.empty() || !bias.empty();
  }
  /// Logits, and a large negative number elsewhere.
  Tensor of_logits(Tensor logits) const {
    return seen_.empty() ? logits : where(seen_, logits, number(logits, kLowest), at_);
  }
  /// As attention(): a query from which all keys are hidden has no weights.
  Tensor of_weights(Tensor weights) const {
    return may_hide_all_ ? where(seen_, weights, number(weights, 0), at_) : weights;
  }

 private:
  void also(Tensor seen) {
    if (!seen.empty()) seen_ = seen_.empty() ? seen : logical_and(seen_, seen, at_);
  }
  Tensor number(Tensor like, double value) const {
    return constant(like.graph(), value, like.dtype(), {}, at_);
  }
  Loc at_;
  Tensor seen_;
  bool may_hide_all_ = false;
};

Tensor capped_by(Tensor logits, const AttentionOptions& o, Loc at) {
  TESSERA_REQUIRE(o.soft_cap >= 0 && std::isfinite(o.soft_cap),
                  "a soft cap of {}; it is positive and finite, or 0 for none", o.soft_cap);
  return o.soft_cap == 0 ? logits : tanh(logits / o.soft_cap, at) * o.soft_cap;
}

/// With AttentionOptions::slopes and by_distance.
Tensor biased_by_distance(Tensor logits, const AttentionOptions& o, Loc at) {
  if (o.slopes.empty() && o.by_distance.empty()) return logits;
  Graph& g = logits.graph();
  Tensor behind = sub(iota(g, logits.dim(o.length), DType::int32, at),
                      iota(g, logits.dim(o.memory_length), DType::int32, at), at);
  if (!o.slopes.empty()) {
    Tensor slopes = read_as(stop_gradient(o.slopes), logits.dtype(), at);
    logits = sub(logits, mul(slopes, cast(abs(behind, at), logits.dtype(), at), at), at);
  }
  if (o.by_distance.empty()) return logits;
  const Shape own = o.by_distance.shape().without(logits.shape().names());
  TESSERA_REQUIRE(
      own.rank() == 1 && own[0].size % 2 == 1,
      "the biases by distance are {}: besides dims of the logits {} they have one of their own, "
      "with an odd number of entries",
      o.by_distance.shape().to_string(), logits.shape().to_string());
  const auto most = static_cast<double>(own[0].size / 2);
  Tensor entry = clip(behind, -most, most, at) + most;
  return add(
      logits,
      gather(read_as(o.by_distance, logits.dtype(), at), entry, own[0].name, OutOfRange::error, at),
      at);
}

/// With sinks s: exp(x) / (sum exp x + exp s), relative to the largest of all.
Tensor weights_of(Tensor logits, const std::string& memory, Tensor sinks, Loc at) {
  if (sinks.empty()) return softmax(logits, memory, at);
  sinks = read_as(sinks, logits.dtype(), at);
  const Tensor top = stop_gradient(maximum(reduce_max(logits, memory, at), sinks, at), at),
               e = exp(sub(logits, top, at), at);
  return div(e, add(reduce_sum(e, memory, at), exp(sub(sinks, top, at), at), at), at);
}

/// Dims of the result: those that only the weights have (from key or mask), then the query's, then
/// those that only the value has; without key_dim if the value lacks it.
Shape attended(Tensor query, Tensor weights, Tensor value, const AttentionOptions& o) {
  std::vector<Dim> dims;
  for (const Dim& d : weights.shape()) {
    if (d.name != o.memory_length && !query.shape().has(d.name)) dims.push_back(d);
  }
  for (const Dim& d : query.shape()) {
    if (d.name != o.key_dim || value.shape().has(d.name)) dims.push_back(d);
  }
  for (const Dim& d : value.shape()) {
    if (d.name != o.memory_length && !Shape(dims).has(d.name)) dims.push_back(d);
  }
  return Shape(dims);
}

/// The factor of the weights if several share a dropout draw; empty if none do.
Tensor kept_together(Tensor query, Tensor key, const BiasedOptions& o, Loc at) {
  if (o.dropout == 0 || o.dropout_shared.empty()) return {};
  const Shape dims = logit_dims(query, key, o);
  for (const std::string& d : o.dropout_shared) {
    TESSERA_REQUIRE(dims.has(d),
                    "[biased_attention] dropout is shared along '{}'; logits are {} ({})", d,
                    dims.to_string(), where(at));
  }
  const Shape drawn = dims.without(o.dropout_shared);
  return dropout(constant(query.graph(), 1, query.dtype(), drawn, at), o.dropout, at);
}

}  // namespace

Tensor biased_attention(Tensor query, Tensor key, Tensor value, Tensor mask,
                        const BiasedOptions& given, Loc at) {
  const bool is_users = is_users_call(at);
  return on_behalf_of("biased_attention", at, [&]() -> Tensor {
    BiasedOptions o = given;
    if (o.extra_logit) {
      TESSERA_REQUIRE(o.sinks.empty(),
                      "there are sinks {} and an extra logit of {}; give one of them",
                      o.sinks.empty() ? "" : o.sinks.shape().to_string(), *o.extra_logit);
      o.sinks = constant(query.graph(), *o.extra_logit,
                         is_narrow(query.dtype()) ? DType::float32 : query.dtype());
    }
    if (is_users) require_spelt(query, key, value, mask, o);
    require_rate("biased_attention", o.dropout, at);
    const Tensor kept = kept_together(query, key, o, at);
    if (!kept.empty() &&
        !kept.shape().has(o.length)) {  // the sum of w (kept v) equals that of (w kept) v
      BiasedOptions rest = given;
      rest.dropout = 0;
      return biased_attention(query, key, mul(value, kept, at), mask, rest, at);
    }
    const Shape own =
        value.shape()
            .without({o.memory_length})
            .without(query.shape().united(key.shape().without({o.memory_length})).names());
    const bool has_width = value.shape().has(o.key_dim) || own.rank() == 1;
    if (o.bias.empty() && kept.empty() && has_width)
      return attention(query, key, value, mask, o, at);
    const Shape dims = logit_dims(query, key, o);
    Tensor products = einsum({query, key}, dims, at);
    // Where rules split queries and keys over one axis, a rank keeps its queries.
    const PreferScope queries(query.graph(), products.prefer(o.length, at));
    Tensor logits = capped_by(wide(products) * scale_of(query, o), o, at);
    if (!o.bias.empty()) {
      for (const Dim& d : o.bias.shape()) {
        TESSERA_REQUIRE(dims.has(d.name),
                        "[biased_attention] the bias has the dim '{}'; logits are {} ({})", d.name,
                        dims.to_string(), where(at));
      }
      logits = add(logits, read_as(o.bias, logits.dtype()), at);
    }
    logits = biased_by_distance(logits, o, at);
    const Seen seen(logits, mask, o.bias, o, at);
    Tensor weights =
        seen.of_weights(weights_of(seen.of_logits(logits), o.memory_length, o.sinks, at));
    if (!kept.empty()) {
      weights = mul(weights, read_as(kept, weights.dtype()), at);
    } else if (o.dropout > 0) {
      weights = dropout(weights, o.dropout, at);
    }
    return einsum({read_as(weights, query.dtype()), value}, attended(query, weights, value, o), at);
  });
}

namespace {

struct Heads {
  Shape query, memory;
};

Heads heads_of(const MultiHeadOptions& o, Loc at) {
  const int64_t kept = o.memory_heads == 0 ? o.heads : o.memory_heads;
  TESSERA_REQUIRE(
      o.heads >= 1 && kept >= 1 && o.heads % kept == 0,
      "[multihead_attention] {} heads cannot share {} memory heads; take a divisor ({})", o.heads,
      kept, where(at));
  const Dim depth(o.attention.key_dim, o.d_head), all("heads", o.heads), some("heads", kept);
  if (kept == o.heads) return {{all, depth}, {all, depth}};
  if (kept == 1) return {{all, depth}, Shape{depth}};
  return {{some, Dim("heads_per_key", o.heads / kept), depth}, {some, depth}};
}

}  // namespace

Tensor multihead_attention(Tensor x, Tensor memory, const std::string& name,
                           const std::string& model, const MultiHeadOptions& o, Loc at) {
  const bool is_users = is_users_call(at);
  return on_behalf_of("multihead_attention", at, [&] {
    if (is_users) require_spelt(x, memory, {}, o.mask, o.attention);
    Scope scope(x.graph(), name);
    const Heads heads = heads_of(o, at);
    const AttentionOptions& a = o.attention;
    Tensor query = dense(x, "query", {model}, heads.query, o.bias, 1, at);
    Tensor key = dense(memory, "key", {model}, heads.memory, false, 1, at);  // a bias would cancel
    Tensor value = o.shared_kv ? key : dense(memory, "value", {model}, heads.memory, o.bias, 1, at);
    if (o.rotary) {
      query = rotary(query, a.length, a.key_dim, o.positions, 10000, at);
      key = rotary(key, a.memory_length, a.key_dim, o.memory_positions, 10000, at);
    }
    Tensor seen = biased_attention(query, key, value, o.mask, o.attention, at).named("seen");
    return dense(seen, "out", heads.query.names(), Shape{x.dim(model)}, o.bias, o.gain, at);
  });
}

Tensor self_attention(Tensor x, const std::string& name, const std::string& model,
                      const MultiHeadOptions& o, Loc at) {
  const bool is_users = is_users_call(at);
  return on_behalf_of("self_attention", at, [&] {
    if (is_users) require_spelt(x, x, {}, o.mask, o.attention);
    const AttentionOptions& a = o.attention;
    MultiHeadOptions own = o;
    if (!o.positions.empty() && o.memory_positions.empty())
      own.memory_positions = rename(o.positions, a.length, a.memory_length, at);
    return multihead_attention(x, rename(x, a.length, a.memory_length, at), name, model, own, at);
  });
}

Tensor talking_heads(Tensor query, Tensor key, Tensor value, Tensor mix_logits, Tensor mix_weights,
                     Tensor mask, const AttentionOptions& o, Loc at) {
  const bool is_users = is_users_call(at);
  return on_behalf_of("talking_heads", at, [&]() -> Tensor {
    if (is_users) require_spelt(query, key, {}, mask, o);
    require_rate("talking_heads", o.dropout, at);
    TESSERA_REQUIRE(o.sinks.empty(), "heads that are mixed have no sinks; they are {}",
                    o.sinks.empty() ? "" : o.sinks.shape().to_string());
    TESSERA_REQUIRE(o.slopes.empty(), "heads that are mixed have no slopes; they are {}",
                    o.slopes.empty() ? "" : o.slopes.shape().to_string());
    TESSERA_REQUIRE(o.by_distance.empty(),
                    "heads that are mixed have no biases by distance; they are {}",
                    o.by_distance.empty() ? "" : o.by_distance.shape().to_string());
    const auto across = [&](Tensor logits, Tensor mix) {
      const Shape shared = logits.shape().without(mix.shape().names());
      TESSERA_REQUIRE(
          shared.rank() == logits.shape().rank() - 1 && mix.shape().rank() == 2,
          "[talking_heads] {} cannot be mixed by {}: they share one dim, the other is new ({})",
          logits.shape().to_string(), mix.shape().to_string(), where(at));
      std::vector<Dim> dims = mix.shape().without(logits.shape().names()).dims();
      for (const Dim& d : shared) dims.push_back(d);
      return einsum({logits, mix}, Shape(dims), at);
    };
    const double scale = scale_of(query, o);
    Tensor logits = across(einsum({query, key}, logit_dims(query, key, o), at), mix_logits);
    logits = capped_by(wide(logits) * scale, o, at);
    const Seen seen(logits, mask, {}, o, at);
    Tensor weights = seen.of_weights(softmax(seen.of_logits(logits), o.memory_length, at));
    if (o.dropout > 0) weights = dropout(weights, o.dropout, at);
    weights = across(read_as(weights, query.dtype()), mix_weights);
    const Shape all = weights.shape().united(value.shape());
    return einsum({weights, value}, all.without({o.memory_length}), at);
  });
}

Tensor compress_mean(Tensor x, const std::string& dim, int64_t factor, Loc at) {
  return on_behalf_of("compress_mean", at, [&]() -> Tensor {
    const Dim whole = x.dim(dim);
    TESSERA_REQUIRE(factor >= 1, "[compress_mean] factor {} of dim '{}'; it is at least 1 ({})",
                    factor, dim, where(at));
    if (is_narrow(x.dtype()))  // the sum may overflow 16 bits
      return cast(compress_mean(cast(x, DType::float32, at), dim, factor, at), x.dtype(), at);
    const int64_t groups = (whole.size - 1) / factor + 1,
                  tail = checked_size(Wide{groups} * factor, "dim '" + dim + "' of full groups") -
                         whole.size;
    const Dim outer(dim, groups), inner("_" + dim, factor);
    std::vector<Dim> dims;
    for (const Dim& d : x.shape()) {
      dims.push_back(d.name == dim ? outer : d);
      if (d.name == dim) dims.push_back(inner);
    }
    if (tail == 0 && !whole.is_bounded)
      return reduce_mean(reshape(x, Shape(dims), at), inner.name, at);
    Tensor sums = reduce_sum(reshape(pad(x, dim, 0, tail, 0, at), Shape(dims), at), inner.name, at);
    Tensor first = iota(x.graph(), outer, DType::int32, at) * static_cast<double>(factor);
    Tensor left = dim_size(x.graph(), whole, DType::int32, at) - first;
    Tensor count = clip(left, 1, static_cast<double>(factor), at);  // 1: a group of nothing is 0
    return div(sums, cast(count, x.dtype(), at), at);
  });
}

}  // namespace tessera::nn
