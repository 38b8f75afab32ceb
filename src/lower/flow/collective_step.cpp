#include "lower/flow/collective_step.h"

#include <algorithm>
#include <cmath>

#include "collectives/cost.h"
#include "lower/layout/interval.h"

namespace tessera {

namespace {

int64_t product(const std::vector<int64_t>& sizes, int first, int last) {
  int64_t n = 1;
  for (int d = first; d < last; ++d) n *= sizes[d];
  return n;
}

int64_t sent_bytes(const RuleLayouts& rule_layouts, const Step& step) {
  int ranks = 1;
  for (int axis : step.axes) ranks *= rule_layouts.mesh().axes()[axis].size;
  const View& view = counted_operand(step);
  return bytes_sent(step.collective, view.elements() * size_of(view.dtype), ranks);
}

}  // namespace

void describe_collective(const Flow& flow, const RuleLayouts& rule_layouts, const FlowNode& node,
                         Step& step) {
  const auto &in = step.in[0].sizes, &out = step.out[0].sizes;
  const int rank = static_cast<int>(in.size());
  if (node.kind == FlowKind::all_reduce) {
    step.spec = AllReduceSpec{product(in, 0, rank)};
  } else if (node.kind == FlowKind::all_gather) {
    step.spec = BlocksSpec{product(in, 0, node.from), product(in, node.from, rank)};
  } else if (node.kind == FlowKind::reduce_scatter) {
    step.spec = BlocksSpec{product(out, 0, node.to), product(out, node.to, rank)};
  } else if (node.kind == FlowKind::all_to_all) {
    const int first = std::min(node.from, node.to), second = std::max(node.from, node.to);
    AllToAllSpec& spec = step.spec.emplace<AllToAllSpec>();
    spec = {product(in, 0, first),          out[node.to],
            product(in, first + 1, second), in[node.from],
            product(in, second + 1, rank),  node.to < node.from};
    if (node.in.size() > 1) {
      const FlowValue& from = flow.values[node.in[0]];
      spec.row = product(in, from.shape.find(from.counts.dim) + 1, rank);
      spec.expected_fill = from.counts.used;
      step.bytes = static_cast<int64_t>(
          std::ceil(from.counts.used * static_cast<double>(sent_bytes(rule_layouts, step))));
      return;
    }
  } else {
    const FlowValue &from = flow.values[node.in[0]], &to = flow.values[node.out[0]];
    const std::vector<int> axis_sizes = sizes_of_axes(rule_layouts.mesh());
    if (from.shape == to.shape) {
      const Slicing has = slicing_of(rule_layouts, from.shape, from.layout),
                    gets = slicing_of(rule_layouts, to.shape, to.layout, to.intervals);
      describe_exchange(has, gets, step);
      step.bytes = mean_received(has, gets, axis_sizes, size_of(from.dtype));
    } else {
      const Numbering has = numbering_of(rule_layouts, from.shape, from.layout, from.turns),
                      gets = numbering_of(rule_layouts, to.shape, to.layout, to.turns);
      describe_renumbering(has, gets, step);
      step.bytes = mean_renumbered(has, gets, axis_sizes, size_of(from.dtype));
    }
    return;
  }
  step.bytes = sent_bytes(rule_layouts, step);
}

}  // namespace tessera
