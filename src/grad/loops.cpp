// The gradient of a loop is a loop that runs the other way. Its carries are the gradients of the
// loop's carries. An iteration of it reads values of the same iteration of the loop. The loop keeps
// such a value: it stacks it, and the gradient's loop takes slices. Some values are recomputed
// instead: those that are cheap (an index, a constant, random numbers, what depends only on those,
// a slice that is cast, a rename) and those that the user says. Then only what the recomputation
// reads is kept. needed_results() drops what nothing reads in the end.
#include <algorithm>

#include "base/fail.h"
#include "grad/sweep.h"
#include "ir/body.h"
#include "ir/loop_builder.h"
#include "ir/source_ops.h"

namespace tessera {

namespace {

/// For the loop `back`, the gradient of the loop `number`: what its iterations read of `number`.
class LoopRematerializer final : public Rematerializer {
 public:
  LoopRematerializer(Graph& g, int number, LoopBuilder& back, Rematerializer& outer, Loc at)
      : g_(g), number_(number), back_(back), outer_(outer), at_(at) {
    loops_ = outer.loops();
    loops_[number] = back.number();
    find_varying();
  }

  void reach(Graph&, int) override {}
  int recompute_group(int) override { return 0; }
  bool recomputes(int n) const override {
    return outer_.recomputes(n) ||
           std::any_of(regions_of(g_).begin(), regions_of(g_).end(), [&](const auto& region) {
             return !region.rule && region.first <= n && n < region.last;
           });
  }

  int value(int, int v) override {
    const int n = g_.value(v).node;
    const Node node = g_.nodes()[n];  // a copy: the graph grows
    if (node.loop != number_) return outer_.value(loops_of(g_)[number_].node, v);
    if (const auto known = made_.find(v); known != made_.end()) return known->second;
    const LoopScope own_iterations(g_, back_.number());
    if (node.op == &kLoopSlice) {
      const Tensor whole(&g_, value(-1, node.in[0]));
      return made_[v] = back_.slice(whole, at_).id();
    }
    if (node.op == &kLoopIndex) return made_[v] = back_.index(at_).id();
    const bool can = node.op != &kLoop && node.op != &kLoopCarry;
    if (can && (!varies_[v] || recomputes(n) || is_of_slice(node) || is_rename(node)))
      return make(node, v);
    const Tensor kept = add_loop_result(g_, number_, Tensor(&g_, v), Loop::Result::stack);
    const Tensor whole(&g_, outer_.value(loops_of(g_)[number_].node, kept.id()));
    return made_[v] = back_.slice(whole, at_).id();
  }

 private:
  void find_varying() {
    const Loop& loop = loops_of(g_)[number_];
    varies_.assign(g_.values().size(), false);
    for (int n = loop.first; n < loop.node; ++n) {
      const Node& node = g_.nodes()[n];
      bool varies = node.loop == number_ && (node.op == &kLoopCarry || node.op == &kLoopSlice);
      for (int v : node.in) varies = varies || varies_[v];
      for (int v : node.out) varies_[v] = varies;
    }
  }

  /// A parameter in another dtype, say. Its slice is read again, not kept for each iteration.
  bool is_of_slice(const Node& node) const {
    return node.op->pointwise && node.in.size() == 1 && g_.producer(node.in[0]).op == &kLoopSlice;
  }

  /// The operand is kept instead: it may lie split over ranks where the renamed value is gathered.
  bool is_rename(const Node& node) const {
    if (node.in.size() != 1 || !index_space(g_, node).same_order) return false;
    const Shape &from = g_.value(node.in[0]).shape, &to = g_.value(node.out[0]).shape;
    return std::equal(from.begin(), from.end(), to.begin(), to.end(),
                      [](const Dim& a, const Dim& b) { return a.size == b.size; });
  }

  int make(const Node& node, int v) {
    std::vector<Tensor> in;
    for (int operand : node.in) in.emplace_back(&g_, value(-1, operand));
    Attrs attrs = node.attrs;
    rename_loops(attrs, loops_);
    const SourceScope source(g_, node, g_.value(v).prefer, ".again");
    const std::vector<Tensor> out = g_.add(*node.op, in, std::move(attrs), at_);
    for (size_t i = 0; i < out.size(); ++i) made_[node.out[i]] = out[i].id();
    return made_[v];
  }

  Graph& g_;
  int number_;
  LoopBuilder& back_;
  Rematerializer& outer_;
  Loc at_;
  std::vector<bool> varies_;  ///< by value: whether iterations differ in it
  std::unordered_map<int, int> made_;
};

Tensor zeros_like(Graph& g, int value, Loc at) {
  return constant(g, 0, g.value(value).dtype, g.value(value).shape, at);
}

/// Gradients, made by the iterations, of values that they read from outside.
struct Outward {
  std::vector<int> of;  ///< the values
  std::vector<Tensor> grads;
};

/// Those of values of which the iterations take slices: they are stacked.
Outward of_slices(const Graph& g, int number, const Pending& inner,
                  const std::vector<bool>& reached) {
  Outward result;
  const Loop& loop = loops_of(g)[number];
  for (int n = loop.first; n < loop.node; ++n) {
    const Node& node = g.nodes()[n];
    if (node.loop != number || node.op != &kLoopSlice || !reached[node.in[0]]) continue;
    const auto found = inner.find(node.out[0]);
    if (found == inner.end()) continue;
    result.of.push_back(node.in[0]);
    result.grads.push_back(found->second);
  }
  return result;
}

/// Those of values that every iteration reads whole: they are summed.
Outward of_captures(const Graph& g, int number, const Pending& inner,
                    const std::vector<bool>& reached) {
  Outward result;
  for (const auto& [v, grad] : inner) {
    const bool outside = g.producer(v).loop != number;
    if (outside && is_floating(g.value(v).dtype) && reached[v]) result.of.push_back(v);
  }
  std::sort(result.of.begin(), result.of.end());
  for (int v : result.of) result.grads.push_back(inner.at(v));
  return result;
}

}  // namespace

void sweep_loop(Graph& g, Pending& pending, const std::vector<bool>& reached, int n,
                Rematerializer& rematerializer, Loc at) {
  const Node node = g.nodes()[n];  // copies: the graph grows
  const int number = loop_of(node);
  const Loop loop = loops_of(g)[number];
  if (std::none_of(node.out.begin(), node.out.end(), [&](int v) { return pending.count(v); }))
    return;
  const SourceScope source(g, node, {}, ".grad");
  std::vector<size_t> tracked;
  std::vector<Tensor> inits;
  for (size_t j = 0; j < loop.carries.size(); ++j) {
    if (!is_floating(g.value(loop.carries[j]).dtype) || !reached[loop.carries[j]]) continue;
    tracked.push_back(j);
    inits.push_back(pending.count(node.out[j]) ? pending[node.out[j]]
                                               : zeros_like(g, loop.carries[j], at));
  }
  LoopBuilder back(g, loop.over, !loop.reverse);
  LoopRematerializer mine(g, number, back, rematerializer, at);
  Pending inner;
  for (size_t k = 0; k < tracked.size(); ++k)
    accumulate(inner, node.in[tracked[k]], back.carry(inits[k], at), at);
  for (size_t i = loop.carries.size(); i < node.in.size(); ++i) {
    const auto grad = pending.find(node.out[i]);
    if (grad == pending.end()) continue;
    const bool stacked = loop.results[i] == Loop::Result::stack;
    accumulate(inner, node.in[i], stacked ? back.slice(grad->second, at) : grad->second, at);
  }
  if (loop.condition >= 0) back.condition(Tensor(&g, mine.value(-1, loop.condition)));
  const SweepRange iterations{loop.first, n, number};
  sweep_range(g, inner, reached, iterations, mine, at);
  std::vector<Tensor> next;
  for (size_t j : tracked) {
    const auto grad = inner.find(loop.carries[j]);
    next.push_back(grad != inner.end() ? grad->second : zeros_like(g, loop.carries[j], at));
  }
  const Outward slices = of_slices(g, number, inner, reached);
  const Outward captures = of_captures(g, number, inner, reached);
  if (next.empty() && slices.of.empty() && captures.of.empty()) return;
  const std::vector<Tensor> made = back.finish(next, slices.grads, captures.grads, at);
  size_t r = 0;
  for (size_t j : tracked) accumulate(pending, g.producer(loop.carries[j]).in[0], made[r++], at);
  for (int v : slices.of) {
    const Tensor grad = made[r++];
    const Shape& shape = g.value(v).shape;
    accumulate(pending, v, grad.shape() == shape ? grad : transpose(grad, shape, at), at);
  }
  for (int v : captures.of) accumulate(pending, v, made[r++], at);
}

}  // namespace tessera
