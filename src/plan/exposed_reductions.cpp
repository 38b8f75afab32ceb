#include "plan/exposed_reductions.h"

#include <algorithm>
#include <set>

#include "ir/source_ops.h"
#include "tessera/op.h"

namespace tessera {

namespace {

/// True if the node can take operand i as a partial value and pass it on.
bool hands_on(const Node& node, size_t i) {
  const auto has = [&](uint32_t set) { return (set >> i & 1) != 0; };
  return node.op->converts || std::any_of(node.op->linear.begin(), node.op->linear.end(), has);
}

bool is_heavy(const Node& node) { return node.op->flops || node.op->body || node.op == &kLoop; }

}  // namespace

bool follows_operand(const Graph& graph, const std::vector<char>& needed, int n) {
  const Node& node = graph.nodes()[static_cast<size_t>(n)];
  if (node.in.size() != 1) return false;
  for (int k = graph.value(node.in[0]).node + 1; k < n; ++k) {
    if (needed[static_cast<size_t>(k)] && is_heavy(graph.nodes()[static_cast<size_t>(k)]))
      return false;
  }
  return true;
}

bool is_awaited(const Graph& graph, const std::vector<char>& needed, int n) {
  if (!is_heavy(graph.nodes()[static_cast<size_t>(n)])) return false;
  std::set<int> partial(graph.nodes()[n].out.begin(), graph.nodes()[n].out.end());
  for (size_t next = static_cast<size_t>(n) + 1; next < graph.nodes().size(); ++next) {
    if (!needed[next]) continue;
    const Node& node = graph.nodes()[next];
    bool reads = false;
    for (size_t i = 0; i < node.in.size(); ++i) {
      if (!partial.contains(node.in[i])) continue;
      if (node.op == &kLoop || !hands_on(node, i)) return true;
      reads = true;
    }
    if (reads) partial.insert(node.out.begin(), node.out.end());
    if (is_heavy(node)) return false;
  }
  return false;
}

}  // namespace tessera
