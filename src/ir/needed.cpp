#include "ir/needed.h"

namespace tessera {

std::vector<int> roots_of(const Graph& graph, const FunctionSpec& function) {
  std::vector<int> roots;
  for (const Tensor& t : function.outputs) roots.push_back(t.id());
  for (const Update& u : graph.updates()) {
    if (function.updates) roots.push_back(u.value);
  }
  return roots;
}

std::vector<char> needed_nodes(const Graph& graph, const std::vector<int>& roots) {
  std::vector<char> needed(graph.nodes().size(), 0);
  for (int root : roots) needed[graph.value(root).node] = 1;
  for (size_t n = graph.nodes().size(); n-- > 0;) {
    if (!needed[n]) continue;
    for (int v : graph.nodes()[n].in) needed[graph.value(v).node] = 1;
  }
  return needed;
}

}  // namespace tessera
