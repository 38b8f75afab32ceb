#include "plan/balanced_rules.h"

#include <algorithm>

#include "base/fail.h"
#include "ir/body.h"

namespace tessera {

namespace {

/// The dim of other operands that ranks have slices of like those of `dim`, or `dim` itself.
std::string dim_like(const OpCall& call, const std::string& dim, const Space& space,
                     const Assignment& a) {
  for (size_t i = 1; i < call.in.size(); ++i) {
    for (const Dim& other : call.in[i].shape) {
      if (!call.in[0].shape.has(other.name) &&
          space.axes_of(a, other.name) == space.axes_of(a, dim))
        return other.name;
    }
  }
  return dim;
}

int64_t slices_of(const StepSummary& summary, const Assignment& a, const std::string& dim) {
  const int d = summary.find(dim);
  int64_t slices = 1;
  for (size_t axis = 0; d >= 0 && axis < a.picks.size(); ++axis)
    slices *= a.picks[axis] >> d & 1 ? a.mesh.axes()[axis].size : 1;
  return slices;
}

}  // namespace

std::vector<SegmentRule> balanced_rules(const Graph& graph, const StepSummary& summary,
                                        const Space& space, const Assignment& a) {
  std::vector<SegmentRule> rules;
  for (const Node& node : graph.nodes()) {
    if (!node.op->body || !node.op->sharded_body) continue;
    const CallTypes types = call_types(graph, node);
    const OpCall call{*node.op, types.in, types.out, node.attrs};
    for (const Dim& dim : types.in[0].shape) {
      const int d = summary.find(dim.name);
      const int64_t slices = slices_of(summary, a, dim.name);
      if (d < 0 || !(space.free_dims() >> d & 1) || slices < 2) continue;
      const std::string text = fmt::format("{}:{}*2", dim.name, space.axes_of(a, dim.name));
      const bool is_known = std::any_of(rules.begin(), rules.end(),
                                        [&](const SegmentRule& r) { return r.text == text; });
      if (is_known || !can_be_sharded(call, dim.name, dim_like(call, dim.name, space, a), slices))
        continue;
      rules.push_back({text, text, false, 0});
    }
  }
  return rules;
}

}  // namespace tessera
