// Through which ops a partial value may pass before ranks reduce it: those that are linear in it,
// while its bytes do not grow. docs/explanation/partial-values.md has the rule in full.
#include "lower/layout/partial_operands.h"

#include <algorithm>

#include "lower/layout/choose.h"

namespace tessera {

bool takes_partial(const Graph& graph, const Node& node, int value, const TensorLayout& have,
                   const std::function<TensorLayout(int)>& layout_of) {
  uint32_t positions = 0;
  for (size_t i = 0; i < node.in.size(); ++i) positions |= node.in[i] == value ? 1u << i : 0;
  const uint32_t set = linear_in(*node.op, positions);
  if (set == 0) return false;
  if (graph.value(node.out[0]).shape.elements() > graph.value(value).shape.elements()) return false;
  for (size_t i = 0; i < node.in.size(); ++i) {
    if (positions >> i & 1) continue;
    const TensorLayout layout = layout_of(node.in[i]);
    for (int axis : have.partial) {
      const bool also =
          std::find(layout.partial.begin(), layout.partial.end(), axis) != layout.partial.end();
      if (layout.uses(axis) && !(also && (set >> i & 1))) return false;
    }
    for (int axis : layout.partial) {  // another partial operand must be part of the same sum
      if (have.uses(axis) && !(set >> i & 1)) return false;
    }
    if (!(set >> i & 1) && !layout.partial.empty()) return false;
  }
  return true;
}

}  // namespace tessera
