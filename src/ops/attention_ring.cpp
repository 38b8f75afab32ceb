// Ring attention (Liu et al. 2023), for ranks that have slices of both queries and keys. Keys and
// values are passed round the ranks; each rank attends to one slice after the other and joins the
// results. No rank ever holds all keys. Backward passes them in the other direction, with the
// partial gradients of keys and values, which are back home after a full round.
//
// Balanced, queries and keys are in two intervals each (AttentionCut). Of the four pairs of them, a
// causal structure hides two in each turn, on every rank: the kernel visits as much everywhere.
#include "ops/attention_cut.h"
#include "ops/precision.h"

namespace tessera {

namespace {

using Tensors = std::vector<Tensor>;

/// Queries and keys in slices; both have the slices along the dim `length`.
class Ring {
 public:
  Ring(const OpCall& call, const Tensors& in, int64_t slices, bool balanced)
      : attrs_(call.attrs),
        balanced_(balanced),
        slices_(attrs_.get<std::string>("length"), slices),
        queries_(in[0].dim(slices_.name), slices_, balanced),
        keys_(in[1].dim(attrs_.get<std::string>("memory_length")), slices_, balanced),
        query_(queries_.of(in[0])),
        shared_(shared_structure(in, attrs_)),
        g_(in[0].graph()) {
    const Dim& all = in[1].dim(attrs_.get<std::string>("memory_length"));
    if (all.is_bounded) absent_ = whole_number(all.size) - dim_size(g_, all, DType::int32);
    attrs_.set("length", queries_.inner());
    attrs_.set("memory_length", keys_.inner());
    attrs_.set("memory", all.size);
    for (size_t i : {1, 2}) add_key(in[i]);
    if (segment_operands(attrs_) == 0) return;
    segments_ = queries_.of(in[in.size() - 2]);
    add_key(in.back());
  }

  const AttentionCut& queries() const { return queries_; }
  const AttentionCut& keys() const { return keys_; }
  int64_t slices() const { return slices_.size; }
  /// By interval: keys, values and perhaps the segments of keys. They go round.
  const std::vector<Tensors>& held() const { return key_; }
  /// Sends each rank's intervals `by` ranks further.
  Tensor turned(const Tensor& x, int64_t by) const { return shift(x, slices_.name, by, true); }
  void turn(std::vector<Tensors>& held, int64_t by) const {
    for (Tensors& interval : held) {
      for (Tensor& x : interval) x = turned(x, by);
    }
  }

  /// Attention of an interval of the queries to an interval of the keys held after `turns`.
  AttentionPart part(const std::vector<Tensors>& held, size_t query, size_t key,
                     int64_t turns) const {
    const Tensors out = g_.add(
        kAttentionPart, operands(held[key], query, {query_start(query), key_start(key, turns)}),
        attrs(turns), Loc::current());
    return {out[0], out[1]};
  }
  /// `of_query`: gradient of out, out, log_sum and products (operands 3 to 6 of kAttentionGrad).
  Tensors part_grad(const std::vector<Tensors>& held, size_t query, size_t key, int64_t turns,
                    Tensors of_query) const {
    of_query.insert(of_query.end(), {query_start(query), key_start(key, turns)});
    return g_.add(kAttentionGrad, operands(held[key], query, of_query), attrs(turns),
                  Loc::current());
  }

 private:
  void add_key(const Tensor& x) {
    const Tensors intervals = keys_.of(x);
    key_.resize(intervals.size());
    for (size_t i = 0; i < intervals.size(); ++i) key_[i].push_back(intervals[i]);
  }
  Tensor query_start(size_t interval) const { return moved(queries_.start(g_, interval, 0)); }
  Tensor key_start(size_t interval, int64_t turns) const {
    return moved(keys_.start(g_, interval, turns));
  }
  Tensor moved(const Tensor& start) const { return absent_.empty() ? start : start + absent_; }
  Tensor whole_number(int64_t x) const {
    return constant(g_, static_cast<double>(x), DType::int32);
  }
  /// With the share of the keys that the busiest rank's queries see in a turn.
  Attrs attrs(int64_t turns) const {
    Attrs attrs = attrs_;
    if (attrs.get<int64_t>("causal") != 0)
      attrs.set("visible", balanced_ || turns % slices_.size == 0 ? 0.5 : 1.0);
    return attrs;
  }
  /// Query, keys and values, the rest, segments.
  Tensors operands(const Tensors& keys, size_t query, const Tensors& rest) const {
    Tensors in = {query_[query], keys[0], keys[1]};
    in.insert(in.end(), rest.begin(), rest.end());
    in.insert(in.end(), shared_.begin(), shared_.end());
    if (keys.size() > 2) in.insert(in.end(), {segments_[query], keys[2]});
    return in;
  }

  Attrs attrs_;
  bool balanced_;
  Dim slices_;
  AttentionCut queries_, keys_;
  Tensors query_, segments_;  ///< by interval
  Tensors shared_;            ///< slopes, biases by distance
  std::vector<Tensors> key_;
  Graph& g_;
  /// Of a bounded length: how many keys the run lacks. All positions are moved on by it, so that
  /// the keys which are not there lie beyond the last one.
  Tensor absent_;
};

void add_to(Tensor& sum, const Tensor& x) { sum = sum.empty() ? x : sum + x; }

}  // namespace

Tensors ring_attention(const OpCall& call, const Tensors& in, int64_t slices, bool balanced) {
  const Ring ring(call, in, slices, balanced);
  std::vector<Tensors> held = ring.held();
  std::vector<AttentionPart> all(ring.queries().intervals());
  for (int64_t turns = 0; turns < slices; ++turns) {
    if (turns > 0) ring.turn(held, 1);
    for (size_t q = 0; q < all.size(); ++q) {
      for (size_t k = 0; k < held.size(); ++k) {
        const AttentionPart part = ring.part(held, q, k, turns);
        all[q] = all[q].out.empty() ? part : join(all[q], part);
      }
    }
  }
  Tensors out, log_sum;
  for (const AttentionPart& part : all) {
    out.push_back(part.out);
    log_sum.push_back(part.log_sum);
  }
  const Shape sums = in[0].shape().without({call.attrs.get<std::string>("key_dim")});
  return {ring.queries().whole(out, attended_shape(in[0].shape(), in[2].shape(), call.attrs)),
          ring.queries().whole(log_sum, sums)};
}

Tensors ring_attention_grad(const OpCall& call, const Tensors& in, int64_t slices, bool balanced) {
  const Ring ring(call, in, slices, balanced);
  std::vector<Tensors> of_queries(ring.queries().intervals());
  for (size_t i = 3; i < in.size() - structure_operands(call.attrs); ++i) {
    const Tensors intervals = ring.queries().of(in[i]);
    for (size_t q = 0; q < intervals.size(); ++q) of_queries[q].push_back(intervals[q]);
  }
  std::vector<Tensors> held = ring.held();
  Tensors dq(of_queries.size()), dk(held.size()), dv(held.size());
  Tensor of_entries;
  for (int64_t turns = 0; turns < slices; ++turns) {
    if (turns > 0) ring.turn(held, -1);
    for (size_t k = 0; k < held.size(); ++k) {
      if (turns > 0) {
        dk[k] = ring.turned(dk[k], -1);
        dv[k] = ring.turned(dv[k], -1);
      }
      for (size_t q = 0; q < of_queries.size(); ++q) {
        const Tensors d = ring.part_grad(held, q, k, slices - turns, of_queries[q]);
        add_to(dq[q], wide(d[0]));
        add_to(dk[k], d[1]);
        add_to(dv[k], d[2]);
        if (d.size() > 3) add_to(of_entries, d[3]);
      }
    }
  }
  for (Tensor& d : dq) d = narrow(d, in[0].dtype());
  for (Tensors* of_keys : {&dk, &dv}) {
    for (Tensor& d : *of_keys) d = ring.turned(d, -1);
  }
  Tensors result = {ring.queries().whole(dq, in[0].shape()), ring.keys().whole(dk, in[1].shape()),
                    ring.keys().whole(dv, in[2].shape())};
  if (!of_entries.empty())
    result.push_back(transpose(reduce_sum(of_entries, call.attrs.get<std::string>("length")),
                               call.out[3].shape));
  return result;
}

}  // namespace tessera
