#include "lower/partition/strict_sums.h"

#include <algorithm>

#include "base/fail.h"

namespace tessera {

SumOrder StrictSums::order_of(const OpCall& call, const IndexSpace& space, const Choice& choice,
                              const Origin& origin) const {
  SumOrder order;
  for (size_t f = 0; f < space.factors.size(); ++f) {
    const Factor& factor = space.factors[f];
    const bool adds = factor.combiner == Combiner::sum || factor.combiner == Combiner::prod;
    const bool is_summed = factor.role == Role::reduce || is_inside(factor.role);
    if (!is_summed || !adds || !is_floating(call.out[0].dtype)) continue;
    const int64_t slices = rule_layouts_.slices_of(choice.splits[f]);
    order.along.push_back(
        {static_cast<int64_t>(f), factor.size, rule_layouts_.chunk({factor.name, factor.size}),
         slices, padded_factor(call, space, rule_layouts_, static_cast<int>(f)) / slices});
  }
  if (!order.is_strict()) return order;
  if (!info_of(call.op.kernel).sums_in_order)
    fail(ErrorKind::unsupported,
         "[{}] adds in no canonical order yet, which strict numerics need; leave "
         "train.numerics=strict out, or compute '{}' with einsum and reduce_sum ({})",
         call.op.name, origin.name, origin.source);
  for (const SumOrder::Along& a : order.along) {
    TESSERA_REQUIRE(
        a.slices == 1 || a.slice % a.chunk == 0,
        "[{}] '{}' of {} is split into {} slices of {}, and strict numerics add chunks of {}; "
        "take more chunks (train.numerics=strict:C), or split it over fewer ranks ({})",
        call.op.name, space.factors[static_cast<size_t>(a.dim)].name, a.size, a.slices, a.slice,
        a.chunk, origin.source);
  }
  return order;
}

int StrictSums::add(FlowNode flow, const OpCall& call, const Choice& choice,
                    const std::string& name, const TensorLayout& target) {
  TESSERA_CHECK(call.out.size() == 1, "[{}] has several sums", call.op.name);
  Origin from = flow.origin;
  std::vector<int> axes;
  for (const SumOrder::Along& a : flow.order.along) {
    const std::vector<int>& split = flow.splits[static_cast<size_t>(a.dim)];
    const std::string& factor = flow.space.factors[static_cast<size_t>(a.dim)].name;
    axes.insert(axes.end(), split.begin(), split.end());
    for (const int axis : split)
      from.reason += fmt::format("{}{} (sum over '{}')", from.reason.empty() ? "" : ", ",
                                 rule_layouts_.rule_text(factor, axis), factor);
  }
  std::sort(axes.begin(), axes.end());
  const Join join = join_of(flow, axes);
  flow.order.places = join.places;
  const ValueType& type = call.out[0];
  const Dim subtrees("subtrees", join.places * rule_layouts_.slices_of(axes));
  FlowValue parts{Shape{subtrees}.united(type.shape),
                  is_narrow(type.dtype) ? DType::float32 : type.dtype, choice.out[0], name, -1};
  // What stays partial is of rows that other ranks look up.
  std::erase_if(parts.layout.partial,
                [&](int a) { return std::find(axes.begin(), axes.end(), a) != axes.end(); });
  TensorLayout joined = joined_layout(type, choice.out[0], target, axes);
  keep_partial(joined, parts.layout);
  parts.layout.dims.insert(parts.layout.dims.begin(), axes);
  const int made = emit_.add_value(parts);
  flow.out = {made};
  emit_.add_node(std::move(flow));
  parts.layout = joined;
  parts.layout.dims.insert(parts.layout.dims.begin(), std::vector<int>{});
  FlowNode sum;
  sum.kind = FlowKind::tree_sum;
  sum.combiner = call.op.combiner;
  sum.tree_sum = join.spec;
  sum.in = {emit_.move(made, parts.layout, from)};
  sum.origin = from;
  const int result = emit_.add_value({type.shape, type.dtype, joined, name, -1});
  sum.out = {result};
  emit_.add_node(std::move(sum));
  return result;
}

StrictSums::Join StrictSums::join_of(const FlowNode& flow, const std::vector<int>& axes) const {
  const auto ranks_along = [&](int axis) {
    return static_cast<int64_t>(rule_layouts_.mesh().axes()[static_cast<size_t>(axis)].size);
  };
  Join join;
  std::vector<std::vector<SumRange>> of_rank;
  for (int64_t rank = 0; rank < rule_layouts_.slices_of(axes); ++rank) {
    std::vector<int64_t> coordinates(static_cast<size_t>(rule_layouts_.mesh().rank()), 0), slices;
    int64_t rest = rank;
    for (size_t i = axes.size(); i-- > 0; rest /= ranks_along(axes[i]))
      coordinates[static_cast<size_t>(axes[i])] = rest % ranks_along(axes[i]);
    for (const SumOrder::Along& a : flow.order.along) {
      int64_t slice = 0;
      for (const int axis : flow.splits[static_cast<size_t>(a.dim)])
        slice = slice * ranks_along(axis) + coordinates[static_cast<size_t>(axis)];
      slices.push_back(slice);
    }
    of_rank.push_back(subtrees_of(flow.order, slices));
    join.places = std::max(join.places, std::ssize(of_rank.back()));
  }
  std::vector<std::pair<uint64_t, int64_t>> all;  // first leaf, place
  for (size_t rank = 0; rank < of_rank.size(); ++rank) {
    for (size_t p = 0; p < of_rank[rank].size(); ++p)
      all.emplace_back(of_rank[rank][p].leaf,
                       static_cast<int64_t>(rank) * join.places + static_cast<int64_t>(p));
  }
  std::sort(all.begin(), all.end());
  std::vector<uint64_t> leaves;
  for (const auto& [leaf, place] : all) {
    leaves.push_back(leaf);
    join.spec.places.push_back(place);
  }
  join.spec.joins = joins_of(leaves);
  return join;
}

/// The layout in which subtrees are joined: `target`, or slices of it over the axes of the sum that
/// it leaves unused.
TensorLayout StrictSums::joined_layout(const ValueType& type, const TensorLayout& computed,
                                       const TensorLayout& target,
                                       const std::vector<int>& axes) const {
  constexpr int64_t kSmallBytes = 16 << 10;
  const bool is_small =
      rule_layouts_.local_elements(type.shape, target) * size_of(type.dtype) < kSmallBytes;
  if (is_small || std::any_of(axes.begin(), axes.end(), [&](int a) { return target.uses(a); }))
    return target;
  TensorLayout layout = target;
  const int64_t ranks = rule_layouts_.slices_of(axes);
  for (size_t d = 0; d < layout.dims.size(); ++d) {
    if (rule_layouts_.local(type.shape[static_cast<int>(d)], layout.dims[d]) % ranks != 0 ||
        computed.dims[d] != layout.dims[d])
      continue;
    layout.dims[d].insert(layout.dims[d].end(), axes.begin(), axes.end());
    return layout;
  }
  return layout;
}

}  // namespace tessera
