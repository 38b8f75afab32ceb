// Loops: the nodes of an iteration are evaluated anew for each.
#include "base/fail.h"
#include "ir/loop.h"
#include "ir/source_ops.h"
#include "support/reference.h"
#include "tessera/op.h"

namespace tessera::test {

/// Element `index` of `dim`, or the place for it.
static void each_of_slice(const Whole& whole, const Whole& part, const std::string& dim,
                          int64_t index, const std::function<void(int64_t, int64_t)>& visit) {
  const std::vector<int64_t> steps = whole.strides_over(part.dims);
  const int64_t base = whole.strides_over({dim})[0] * index;
  int64_t i = 0;
  each_index(part.sizes,
             [&](const std::vector<int64_t>& at) { visit(base + dot(at, steps), i++); });
}

Whole Reference::slice(const Node& node, const Whole& whole) {
  Whole part = empty(graph_.value(node.out[0]).shape);
  each_of_slice(whole, part, node.attrs.get<std::string>("dim"), iteration_of_.at(node.loop),
                [&](int64_t from, int64_t to) { part.data[to] = whole.data[from]; });
  return part;
}

void Reference::forget_iteration(int loop) {
  for (const Node& node : graph_.nodes()) {
    int of = node.loop;
    while (of >= 0 && of != loop) of = loops_of(graph_)[of].parent;
    if (of < 0) continue;
    for (int v : node.out) known_.erase(v);
  }
}

void Reference::loop(const Node& node) {
  const int number = loop_of(node);
  const Loop& loop = loops_of(graph_)[number];
  std::vector<Whole> results;
  for (size_t i = 0; i < node.out.size(); ++i) {
    const bool carried = i < loop.carries.size();
    results.push_back(carried ? value(graph_.producer(loop.carries[i]).in[0])
                              : empty(graph_.value(node.out[i]).shape));
  }
  for (int64_t t = 0; t < loop.over.size; ++t) {
    forget_iteration(number);
    const int64_t index = iteration_of_[number] = loop.reverse ? loop.over.size - 1 - t : t;
    for (size_t i = 0; i < loop.carries.size(); ++i) known_[loop.carries[i]] = results[i];
    if (loop.condition >= 0 && value(loop.condition).data[0] == 0) continue;
    for (size_t i = 0; i < node.out.size(); ++i) {
      const Whole made = value(node.in[i]);
      if (i < loop.carries.size()) {
        results[i] = made;
      } else if (loop.results[i] == Loop::Result::stack) {
        each_of_slice(results[i], made, loop.over.name, index,
                      [&](int64_t to, int64_t from) { results[i].data[to] = made.data[from]; });
      } else {
        for (size_t e = 0; e < made.data.size(); ++e) results[i].data[e] += made.data[e];
      }
    }
  }
  forget_iteration(number);
  for (size_t i = 0; i < node.out.size(); ++i) known_[node.out[i]] = std::move(results[i]);
}

}  // namespace tessera::test
