// Attention where ranks have slices of the queries: with all keys, or round a ring.
#include "ops/attention_cut.h"
#include "ops/infer.h"

namespace tessera {

namespace {

using Tensors = std::vector<Tensor>;

/// Intervals of the queries, which attend to all keys.
class ByQueries {
 public:
  ByQueries(const OpCall& call, const Tensors& in, int64_t slices, bool balanced)
      : attrs_(call.attrs),
        in_(in),
        entries_grad_shape_(call.out.size() > 3 ? call.out[3].shape : Shape{}),
        g_(in[0].graph()),
        slices_(attrs_.get<std::string>("length"), slices),
        cut_(in[0].dim(slices_.name), slices_, balanced),
        query_(cut_.of(in[0])),
        shared_(shared_structure(in, attrs_)) {
    attrs_.set("length", cut_.inner());
    if (segment_operands(attrs_) > 0) segments_ = cut_.of(in[in.size() - 2]);
    if (attrs_.get<int64_t>("causal") != 0 && !balanced)
      attrs_.set("visible", 1 - 0.5 / static_cast<double>(slices));
  }

  size_t intervals() const { return cut_.intervals(); }

  Tensors forward() const {
    Attrs attrs = attrs_;
    attrs.set("memory", in_[1].dim(attrs.get<std::string>("memory_length")).size);
    Tensors out, log_sum;
    for (size_t i = 0; i < intervals(); ++i) {
      Tensors operands = {query_[i], in_[1], in_[2], cut_.start(g_, i, 0),
                          constant(g_, 0, DType::int32)};
      operands.insert(operands.end(), shared_.begin(), shared_.end());
      if (!segments_.empty()) operands.insert(operands.end(), {segments_[i], in_.back()});
      const Tensors part = g_.add(kAttentionPart, operands, attrs, Loc::current());
      out.push_back(part[0]);
      log_sum.push_back(part[1]);
    }
    const Shape sums = in_[0].shape().without({attrs_.get<std::string>("key_dim")});
    return {cut_.whole(out, attended_shape(in_[0].shape(), in_[2].shape(), attrs_)),
            cut_.whole(log_sum, sums)};
  }

  /// The keys' gradients are summed over the slices.
  Tensors gradient() const {
    const Tensor key = with_slices(in_[1]), value = with_slices(in_[2]);
    std::vector<Tensors> of_queries;
    for (size_t i = 3; i < 7; ++i) of_queries.push_back(cut_.of(in_[i]));
    Tensors dq;
    Tensor dk, dv, of_entries;
    for (size_t i = 0; i < intervals(); ++i) {
      Tensors operands = {query_[i], key, value};
      for (const Tensors& x : of_queries) operands.push_back(x[i]);
      operands.push_back(cut_.start(g_, i, 0));
      operands.insert(operands.end(), shared_.begin(), shared_.end());
      if (!segments_.empty())
        operands.insert(operands.end(), {segments_[i], with_slices(in_.back())});
      const Tensors d = g_.add(kAttentionGrad, operands, attrs_, Loc::current());
      dq.push_back(d[0]);
      dk = i == 0 ? d[1] : dk + d[1];
      dv = i == 0 ? d[2] : dv + d[2];
      if (d.size() > 3) of_entries = i == 0 ? d[3] : of_entries + d[3];
    }
    const auto summed = [&](const Tensor& d, const Shape& shape) {
      return transpose(reduce_sum(d, {slices_.name}), shape);
    };
    Tensors result = {cut_.whole(dq, in_[0].shape()), summed(dk, in_[1].shape()),
                      summed(dv, in_[2].shape())};
    if (!of_entries.empty()) result.push_back(summed(of_entries, entries_grad_shape_));
    return result;
  }

 private:
  Tensor with_slices(const Tensor& x) const {
    std::vector<Dim> dims = {slices_};
    dims.insert(dims.end(), x.shape().begin(), x.shape().end());
    return broadcast(x, Shape(dims));
  }

  Attrs attrs_;
  const Tensors& in_;
  Shape entries_grad_shape_;
  Graph& g_;
  Dim slices_;
  AttentionCut cut_;
  Tensors query_, segments_;
  Tensors shared_;  ///< slopes, biases by distance
};

bool is_length(const OpCall& call, const std::string& dim) {
  return dim == call.attrs.get<std::string>("length");
}
bool is_memory(const OpCall& call, const std::string& dim) {
  return dim == call.attrs.get<std::string>("memory_length");
}
/// True for the gradient of attention over all queries and keys, not over a part of them.
bool is_of_whole(const OpCall& call) {
  return call.in.size() - structure_operands(call.attrs) <= 7;
}
/// See Op::sharded_body. Of other dims that are split like the queries only the keys' one matters.
bool wants_equal_work(const OpCall& call, const std::string& dim, const std::string& like) {
  return is_length(call, dim) && (is_length(call, like) || is_memory(call, like));
}
/// True if later queries see more keys. Within a window, nearly all see as many.
bool is_uneven(const OpCall& call, int64_t slices) {
  const int64_t queries = call.in[0].shape.dim(call.attrs.get<std::string>("length")).size;
  return call.attrs.get<int64_t>("causal") != 0 && !call.attrs.has("window") &&
         queries >= 2 * slices;
}

}  // namespace

std::vector<Tensor> attention_sharded(const OpCall& call, const Tensors& in, const std::string& dim,
                                      const std::string& like, int64_t slices) {
  if (is_memory(call, dim) && is_length(call, like)) return ring_attention(call, in, slices, false);
  if (!wants_equal_work(call, dim, like) || !is_uneven(call, slices)) return {};
  return is_memory(call, like) ? ring_attention(call, in, slices, true)
                               : ByQueries(call, in, slices, true).forward();
}

std::vector<Tensor> attention_grad_sharded(const OpCall& call, const Tensors& in,
                                           const std::string& dim, const std::string& like,
                                           int64_t slices) {
  if (!is_of_whole(call)) return {};
  if (is_length(call, dim) && like.empty()) return ByQueries(call, in, slices, false).gradient();
  if (is_memory(call, dim) && is_length(call, like))
    return ring_attention_grad(call, in, slices, false);
  if (!wants_equal_work(call, dim, like) || !is_uneven(call, slices)) return {};
  return is_memory(call, like) ? ring_attention_grad(call, in, slices, true)
                               : ByQueries(call, in, slices, true).gradient();
}

}  // namespace tessera
