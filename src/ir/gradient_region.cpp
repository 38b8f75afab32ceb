#include "ir/gradient_region.h"

#include <utility>

#include "ir/graph_internals.h"
#include "ir/source_ops.h"

namespace tessera {

const std::vector<GradientRegion>& regions_of(const Graph& graph) {
  return GraphInternals::of(graph).regions;
}

void add_region(Graph& graph, GradientRegion region) {
  region.last = static_cast<int>(graph.nodes().size());
  region.loop = open_loop(graph);
  if (region.last > region.first) GraphInternals::of(graph).regions.push_back(std::move(region));
}

namespace {

/// The copy of a loop that the nodes of a region belong to, made when it is first asked for.
int copy_of_loop(Graph& graph, int loop, std::unordered_map<int, int>& copies) {
  if (is_open(graph, loop)) return loop;
  const auto known = copies.find(loop);
  if (known != copies.end()) return known->second;
  std::deque<Loop>& loops = GraphInternals::of(graph).loops;
  Loop copy = loops[loop];
  copy.parent = copy_of_loop(graph, copy.parent, copies);
  copy.first = static_cast<int>(graph.nodes().size());
  loops.push_back(std::move(copy));
  return copies[loop] = static_cast<int>(loops.size()) - 1;
}

}  // namespace

std::unordered_map<int, int> copy_region(Graph& graph, int region) {
  GraphInternals& g = GraphInternals::of(graph);
  const GradientRegion of = g.regions[region];
  std::unordered_map<int, int> copies;
  std::vector<int> first_copy;
  auto copied = [&](int v) { return copies.count(v) ? copies[v] : v; };
  ++g.recompute_groups;
  std::unordered_map<int, int> loops;  // of the region, and their copies
  for (int n = of.first; n < of.last; ++n) {
    first_copy.push_back(static_cast<int>(g.nodes.size()));
    Node node = g.nodes[n];
    if (node.op == &kInput || node.op == &kStored) continue;
    node.loop = copy_of_loop(graph, node.loop, loops);
    rename_loops(node.attrs, loops);
    for (int& v : node.in) v = copied(v);
    for (int& v : node.out) {
      Value value = g.values[v];
      value.node = first_copy.back();
      value.name = g.unique(value.name);
      v = copies[v] = static_cast<int>(g.values.size());
      g.values.push_back(std::move(value));
    }
    node.name = g.unique(node.name);
    node.recompute_group = g.recompute_groups;
    g.nodes.push_back(std::move(node));
    if (g.eager) g.eager->run(graph, g.nodes.back());
  }
  for (const auto& [from, to] : loops) {
    Loop& loop = g.loops[to];
    loop.node = g.values[copied(g.nodes[g.loops[from].node].out[0])].node;
    if (loop.condition >= 0) loop.condition = copied(loop.condition);
    for (int& v : loop.carries) v = copied(v);
  }
  first_copy.push_back(static_cast<int>(g.nodes.size()));
  for (int r = 0; r < region; ++r) {
    GradientRegion inner = g.regions[r];
    if (inner.first < of.first || inner.last > of.last) continue;
    inner.first = first_copy[inner.first - of.first];
    inner.last = first_copy[inner.last - of.first];
    for (int& v : inner.in) v = copied(v);
    for (int& v : inner.out) v = copied(v);
    if (inner.last > inner.first) g.regions.push_back(std::move(inner));
  }
  return copies;
}

}  // namespace tessera
