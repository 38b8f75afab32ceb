#include "ir/needed.h"

#include <algorithm>

#include "base/fail.h"
#include "ir/loop.h"
#include "ir/source_ops.h"

namespace tessera {

std::vector<int> roots_of(const Graph& graph, const FunctionSpec& function) {
  std::vector<int> roots;
  for (const Tensor& t : function.outputs) {
    TESSERA_REQUIRE(
        !t.empty() && &t.graph() == &graph,
        "output {} of function '{}' {}; outputs are tensors of the graph that is compiled",
        roots.size(), function.name, t.empty() ? "is empty" : "belongs to another graph");
    roots.push_back(t.id());
  }
  for (const Update& u : updates_of(graph, function)) roots.push_back(u.value);
  return roots;
}

std::vector<char> needed_results(const Graph& graph, const Node& loop,
                                 const std::vector<char>& read) {
  const std::vector<Loop::Result>& results = loops_of(graph)[loop_of(loop)].results;
  std::vector<char> needed;
  for (size_t i = 0; i < results.size(); ++i)
    needed.push_back(results[i] == Loop::Result::carry || read[loop.out[i]]);
  return needed;
}

std::vector<char> needed_nodes(const Graph& graph, const std::vector<int>& roots) {
  std::vector<char> needed(graph.nodes().size(), 0), read(graph.values().size(), 0);
  auto want = [&](int value) {
    read[value] = 1;
    needed[graph.value(value).node] = 1;
  };
  std::for_each(roots.begin(), roots.end(), want);
  for (size_t n = graph.nodes().size(); n-- > 0;) {
    if (!needed[n]) continue;
    const Node& node = graph.nodes()[n];
    if (node.op != &kLoop) {
      std::for_each(node.in.begin(), node.in.end(), want);
      continue;
    }
    const std::vector<char> results = needed_results(graph, node, read);
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i]) want(node.in[i]);
    }
    const int condition = loops_of(graph)[loop_of(node)].condition;
    if (condition >= 0) want(condition);
  }
  return needed;
}

}  // namespace tessera
