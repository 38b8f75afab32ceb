#include "plan/awaited.h"

#include <algorithm>
#include <set>

#include "ir/source_ops.h"
#include "tessera/op.h"

namespace tessera {

namespace {

/// Takes a partial operand number i of its own as it is, perhaps.
bool hands_on(const Node& node, size_t i) {
  const auto has = [&](uint32_t set) { return (set >> i & 1) != 0; };
  return node.op == &kCast || node.op == &kIdentity ||
         std::any_of(node.op->linear.begin(), node.op->linear.end(), has);
}

}  // namespace

bool is_awaited(const Graph& graph, const std::vector<char>& needed, int n) {
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
    if (node.op->flops || node.op->body || node.op == &kLoop) return false;
  }
  return false;
}

}  // namespace tessera
