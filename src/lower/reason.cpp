#include "lower/reason.h"

#include <algorithm>

#include "base/fail.h"

namespace tessera {

namespace {

bool contains(const std::vector<int>& list, int x) {
  return std::find(list.begin(), list.end(), x) != list.end();
}

std::string why_partial(const Flow& flow, const HomeLayouts& homes, int value, int axis) {
  const std::vector<FlowNode>& nodes = flow.functions.back().nodes;
  while (flow.values[value].node >= 0) {
    const FlowNode& producer = nodes[flow.values[value].node];
    for (size_t f = 0; f < producer.splits.size(); ++f) {
      if (!contains(producer.splits[f], axis)) continue;
      const Factor& factor = producer.space.factors[f];
      return fmt::format("{} ({} over '{}')", homes.rule_text(factor.name, axis),
                         to_string(factor.combiner), factor.name);
    }
    int next = -1;
    for (int v : producer.in) {
      const int node = flow.values[v].node;
      const bool entered = node >= 0 && nodes[node].kind == FlowKind::first_only;
      if (!entered && contains(flow.values[v].layout.partial, axis)) next = v;
    }
    if (next < 0) return "";
    value = next;
  }
  return "";
}

/// The rule of the factor that the op was split along, where the tensor's own dims have none.
std::string why_split(const Flow& flow, const HomeLayouts& homes, int value, int axis) {
  const int node = flow.values[value].node;
  if (node < 0) return "";
  const FlowNode& producer = flow.functions.back().nodes[node];
  for (size_t f = 0; f < producer.splits.size(); ++f) {
    if (contains(producer.splits[f], axis))
      return homes.rule_text(producer.space.factors[f].name, axis);
  }
  return "";
}

}  // namespace

std::string reason_for(const Flow& flow, const HomeLayouts& homes, int value,
                       const std::vector<int>& axes, const std::vector<int>& dims) {
  for (int axis : axes) {
    for (int d : dims) {
      if (d < 0) continue;
      const std::string text = homes.rule_text(flow.values[value].shape[d].name, axis);
      if (!text.empty()) return text;
    }
    const bool partial = contains(flow.values[value].layout.partial, axis);
    const std::string text =
        partial ? why_partial(flow, homes, value, axis) : why_split(flow, homes, value, axis);
    if (!text.empty()) return text;
  }
  return "";
}

}  // namespace tessera
