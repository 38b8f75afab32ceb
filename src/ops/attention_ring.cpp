// Ring attention (Liu et al. 2023), for ranks that have slices of both queries and keys. Keys and
// values are passed round the ranks; each rank attends to one slice after the other and joins the
// results. No rank ever holds all keys. Backward passes them in the other direction, with the
// partial gradients of keys and values, which are back home after a full round.
#include "ops/attention.h"
#include "ops/bounded.h"
#include "ops/infer.h"
#include "ops/precision.h"
#include "ops/sliced.h"

namespace tessera {

namespace {

using Tensors = std::vector<Tensor>;

/// Merges the slices along `dim`, of `inner` elements each, into one dim of a tensor of `shape`.
Tensor in_one(const Tensor& x, const std::string& dim, const std::string& inner,
              const Shape& shape) {
  std::vector<Dim> apart, merged;
  for (const Dim& d : shape) {
    const Dim own = d.name == dim ? x.dim(dim) : d;
    apart.push_back(own);
    if (d.name == dim) apart.push_back(x.dim(inner));
    merged.push_back(d.name == dim ? Dim(dim, own.size * x.dim(inner).size) : d);
  }
  const Tensor in_order = x.shape() == Shape(apart) ? x : transpose(x, Shape(apart));
  const Tensor all = reshape(in_order, Shape(merged));
  const Dim& own = shape.dim(dim);
  const Tensor whole = all.dim(dim).size == own.size ? all : slice(all, dim, 0, own.size);
  return own.is_bounded ? with_bound(whole, own, Loc::current()) : whole;
}

/// Queries and keys in slices; both have the slices along the dim `length`.
class Ring {
 public:
  Ring(const OpCall& call, const Tensors& in, const std::string& memory, int64_t slices)
      : attrs_(call.attrs),
        length_(attrs_.get<std::string>("length")),
        memory_(memory),
        slices_(length_, slices),
        query_(in[0], length_, slices, 0),
        key_(of_keys(in[1])),
        value_(of_keys(in[2])),
        g_(in[0].graph()) {
    const Dim& all = in[1].dim(memory_);
    const int64_t keys = all.size;
    inner_ = (keys + slices - 1) / slices;
    if (all.is_bounded) absent_ = whole_number(keys) - dim_size(g_, all, DType::int32);
    attrs_.set("length", query_.inner.name);
    attrs_.set("memory_length", memory_ + "/inner");
    attrs_.set("memory", keys);
    query_start_ = starts(0, query_.inner.size);
    if (segment_operands(attrs_) == 0) return;
    query_segments_ = of_queries(in[in.size() - 2]);
    key_segments_ = of_keys(in.back());
  }

  int64_t slices() const { return slices_.size; }
  /// Keys, values and perhaps the segments of keys: what goes round.
  Tensors keys() const {
    Tensors all = {key_, value_};
    if (!key_segments_.empty()) all.push_back(key_segments_);
    return all;
  }
  /// A tensor with the query's length, in slices.
  Tensor of_queries(const Tensor& x) const { return Sliced(x, length_, slices_.size, 0).x; }
  /// Sends each rank's slice `by` ranks further.
  Tensor turned(const Tensor& x, int64_t by) const { return shift(x, length_, by, true); }
  void turn(Tensors& keys, int64_t by) const {
    for (Tensor& x : keys) x = turned(x, by);
  }

  AttentionPart part(const Tensors& keys, int64_t turns) const {
    const Tensors out =
        g_.add(kAttentionPart, operands(keys, {query_start_, starts(turns, inner_)}), attrs_,
               Loc::current());
    return {out[0], out[1]};
  }
  /// `of_queries`: gradient of out, out, log_sum and products (operands 3 to 6 of kAttentionGrad).
  Tensors part_grad(const Tensors& keys, int64_t turns, Tensors of_queries) const {
    of_queries.insert(of_queries.end(), {query_start_, starts(turns, inner_)});
    return g_.add(kAttentionGrad, operands(keys, of_queries), attrs_, Loc::current());
  }

  /// Attention over all parts, joined in turn.
  AttentionPart whole() const {
    Tensors held = keys();
    AttentionPart all = part(held, 0);
    for (int64_t turns = 1; turns < slices(); ++turns) {
      turn(held, 1);
      all = join(all, part(held, turns));
    }
    return all;
  }

  /// The inverse of slicing, in the shape of the op's queries or keys.
  Tensor queries_back(const Tensor& x, const Shape& shape) const {
    return in_one(x, length_, query_.inner.name, shape);
  }
  Tensor keys_back(const Tensor& x, const Shape& shape) const {
    return in_one(rename(x, length_, memory_), memory_, memory_ + "/inner", shape);
  }

 private:
  Tensor of_keys(const Tensor& x) const {
    return rename(Sliced(x, memory_, slices_.size, 0).x, memory_, length_);
  }
  /// For each rank: the start of the slice that it holds after `turns` shifts by one.
  Tensor starts(int64_t turns, int64_t size) const {
    const Tensor rank = iota(g_, slices_), n = whole_number(slices_.size);
    const Tensor start = mod(rank + whole_number(slices_.size - turns), n) * whole_number(size);
    return absent_.empty() ? start : start + absent_;
  }
  Tensor whole_number(int64_t x) const {
    return constant(g_, static_cast<double>(x), DType::int32);
  }
  /// Query, keys and values, the rest, segments.
  Tensors operands(const Tensors& keys, const Tensors& rest) const {
    Tensors in = {query_.x, keys[0], keys[1]};
    in.insert(in.end(), rest.begin(), rest.end());
    if (keys.size() > 2) in.insert(in.end(), {query_segments_, keys[2]});
    return in;
  }
  Attrs attrs_;
  std::string length_, memory_;
  Dim slices_;
  Sliced query_;
  Tensor key_, value_, query_start_, query_segments_, key_segments_;
  Graph& g_;
  int64_t inner_ = 0;
  /// Of a bounded length: how many keys the run lacks. All positions are moved on by it, so that
  /// the keys which are not there lie beyond the last one.
  Tensor absent_;
};

bool turns(const OpCall& call, const std::string& dim, const std::string& like) {
  return dim == call.attrs.get<std::string>("memory_length") &&
         like == call.attrs.get<std::string>("length");
}

}  // namespace

Tensors attention_by_slices(const OpCall& call, const Tensors& in, const std::string& dim,
                            const std::string& like, int64_t slices) {
  if (!turns(call, dim, like)) return {};
  const Ring ring(call, in, dim, slices);
  const AttentionPart whole = ring.whole();
  const Shape sums = in[0].shape().without({call.attrs.get<std::string>("key_dim")});
  const Shape out = attended_shape(in[0].shape(), in[2].shape(), call.attrs);
  return {ring.queries_back(whole.out, out), ring.queries_back(whole.log_sum, sums)};
}

namespace {
/// Each slice of the queries attends to all keys; the keys' gradients are summed over the slices.
Tensors grad_by_queries(const OpCall& call, const Tensors& in, int64_t slices) {
  Graph& g = in[0].graph();
  const auto& length = call.attrs.get<std::string>("length");
  const auto sliced = [&](size_t i) { return Sliced(in[i], length, slices, 0); };
  const Sliced query = sliced(0);
  const Tensor slice = iota(g, Dim(length, slices));
  const auto with_slices = [&](const Tensor& x) {
    std::vector<Dim> dims = {Dim(length, slices)};
    dims.insert(dims.end(), x.shape().begin(), x.shape().end());
    return broadcast(x, Shape(dims));
  };
  Attrs attrs = call.attrs;
  attrs.set("length", query.inner.name);
  const Tensor start = slice * constant(g, static_cast<double>(query.inner.size), DType::int32);
  Tensors operands = {query.x,     with_slices(in[1]), with_slices(in[2]), sliced(3).x,
                      sliced(4).x, sliced(5).x,        sliced(6).x,        start};
  if (segment_operands(attrs) > 0)
    operands.insert(operands.end(), {sliced(in.size() - 2).x, with_slices(in.back())});
  const Tensors d = g.add(kAttentionGrad, operands, std::move(attrs), Loc::current());
  return {in_one(d[0], length, query.inner.name, in[0].shape()),
          transpose(reduce_sum(d[1], {length}), in[1].shape()),
          transpose(reduce_sum(d[2], {length}), in[2].shape())};
}
}  // namespace

Tensors attention_grad_by_slices(const OpCall& call, const Tensors& in, const std::string& dim,
                                 const std::string& like, int64_t slices) {
  const size_t end = in.size() - segment_operands(call.attrs);
  if (end > 7) return {};
  if (like.empty() && dim == call.attrs.get<std::string>("length"))
    return grad_by_queries(call, in, slices);
  if (!turns(call, dim, like)) return {};
  const Ring ring(call, in, dim, slices);
  Tensors of_queries;
  for (size_t i = 3; i < end; ++i) of_queries.push_back(ring.of_queries(in[i]));
  Tensors held = ring.keys();
  Tensor dq, dk, dv;
  for (int64_t turns = 0; turns < slices; ++turns) {
    if (turns > 0) {
      ring.turn(held, -1);
      dk = ring.turned(dk, -1);
      dv = ring.turned(dv, -1);
    }
    const Tensors d = ring.part_grad(held, slices - turns, of_queries);
    dq = turns == 0 ? wide(d[0]) : dq + wide(d[0]);
    dk = turns == 0 ? d[1] : dk + d[1];
    dv = turns == 0 ? d[2] : dv + d[2];
  }
  return {ring.queries_back(narrow(dq, in[0].dtype()), in[0].shape()),
          ring.keys_back(ring.turned(dk, -1), in[1].shape()),
          ring.keys_back(ring.turned(dv, -1), in[2].shape())};
}

}  // namespace tessera
