#include "ir/loop.h"

#include "ir/graph_internals.h"

namespace tessera {

const std::deque<Loop>& loops_of(const Graph& graph) { return GraphInternals::of(graph).loops; }

int loop_of(const Node& node) { return static_cast<int>(node.attrs.get<int64_t>("loop")); }

int open_loop(const Graph& graph) { return GraphInternals::of(graph).building.open_loop; }

bool is_open(const Graph& graph, int loop) {
  if (loop < 0) return true;
  for (int open = open_loop(graph); open >= 0; open = loops_of(graph)[open].parent) {
    if (open == loop) return true;
  }
  return false;
}

bool reads_index_of(const Attrs& attrs, int loop) {
  if (attrs.has("repeat_loops")) {
    const auto& drawn = attrs.get<std::vector<int64_t>>("repeat_loops");
    if (std::ranges::count(drawn, loop) > 0) return true;
  }
  return attrs.has("loop") && attrs.get<int64_t>("loop") == loop;
}

void rename_loops(Attrs& attrs, const std::unordered_map<int, int>& copies) {
  auto renamed = [&](int64_t loop) {
    const auto it = copies.find(static_cast<int>(loop));
    return it == copies.end() ? loop : int64_t{it->second};
  };
  if (attrs.has("loop")) attrs.set("loop", renamed(attrs.get<int64_t>("loop")));
  if (attrs.has("repeat_loops")) {
    auto list = attrs.get<std::vector<int64_t>>("repeat_loops");
    for (int64_t& loop : list) loop = renamed(loop);
    attrs.set("repeat_loops", std::move(list));
  }
}

}  // namespace tessera
