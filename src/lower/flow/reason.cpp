#include "lower/flow/reason.h"

#include <algorithm>

#include "base/fail.h"

namespace tessera {

namespace {

bool contains(const std::vector<int>& list, int x) {
  return std::find(list.begin(), list.end(), x) != list.end();
}

/// The node that computes a value, if it is in this list; else null.
const FlowNode* producer_in(const std::vector<FlowNode>& nodes, const Flow& flow, int value) {
  const int n = flow.values[value].node;
  return n >= 0 && n < std::ssize(nodes) && contains(nodes[n].out, value) ? &nodes[n] : nullptr;
}

/// The same for the list that is being built.
const FlowNode* producer_of(const Flow& flow, int value) {
  return producer_in(flow.functions.back().nodes, flow, value);
}

/// What an iteration computes for a result of its loop.
int made_by_iteration(const FlowNode& node, int result) {
  const FlowLoop& loop = *node.loop;
  auto i =
      static_cast<size_t>(std::find(node.out.begin(), node.out.end(), result) - node.out.begin());
  if (i < loop.carries.size()) return loop.carries[i].next;
  i -= loop.carries.size();
  return i < loop.stacked.size() ? loop.stacked[i] : loop.sums[i - loop.stacked.size()];
}

std::string why_partial(const Flow& flow, const RuleLayouts& rule_layouts, int value, int axis) {
  const std::vector<FlowNode>* nodes = &flow.functions.back().nodes;
  while (const FlowNode* producer_node = producer_in(*nodes, flow, value)) {
    const FlowNode& producer = *producer_node;
    if (producer.loop) {
      if (producer.loop->stage_axis == axis)
        return producer.loop->stage_rule + " (sum over stages)";
      value = made_by_iteration(producer, value);
      nodes = &producer.loop->body;
      continue;
    }
    for (size_t f = 0; f < producer.splits.size(); ++f) {
      if (!contains(producer.splits[f], axis)) continue;
      const Factor& factor = producer.space.factors[f];
      return fmt::format("{} ({} over '{}')", rule_layouts.rule_text(factor.name, axis),
                         to_string(factor.combiner), factor.name);
    }
    int next = -1;
    for (int v : producer.in) {
      const FlowNode* made = producer_in(*nodes, flow, v);
      const bool entered =
          made != nullptr && made->kind == FlowKind::first_only && contains(made->axes, axis);
      if (!entered && contains(flow.values[v].layout.partial, axis)) next = v;
    }
    if (next < 0) return "";
    value = next;
  }
  return "";
}

/// The rule of the factor along which the producer is split.
std::string why_split(const Flow& flow, const RuleLayouts& rule_layouts, int value, int axis) {
  const FlowNode* made = producer_of(flow, value);
  if (made == nullptr) return "";
  const FlowNode& producer = *made;
  for (size_t f = 0; f < producer.splits.size(); ++f) {
    if (contains(producer.splits[f], axis))
      return rule_layouts.rule_text(producer.space.factors[f].name, axis);
  }
  return "";
}

}  // namespace

std::string reason_for(const Flow& flow, const RuleLayouts& rule_layouts, int value,
                       const std::vector<int>& axes, const std::vector<int>& dims) {
  const FlowValue& moved = flow.values[value];
  for (int axis : axes) {
    for (int d : dims) {
      if (d < 0) continue;
      const std::string text = rule_layouts.rule_text(moved.shape[d].name, axis, moved.name);
      if (!text.empty()) return text;
    }
    const bool partial = contains(moved.layout.partial, axis);
    const std::string text = partial ? why_partial(flow, rule_layouts, value, axis)
                                     : why_split(flow, rule_layouts, value, axis);
    if (!text.empty()) return text;
  }
  return "";
}

}  // namespace tessera
