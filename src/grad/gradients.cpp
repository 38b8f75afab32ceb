// Reverse-mode differentiation: one sweep over the nodes between xs and y, from the last to the
// first. The contributions of several consumers are added pairwise. Nothing here knows an op: a
// gradient is Op::gradient, or, for a composite without one, the sweep over its body, rebuilt in
// place. A region counts as one node (gradient_regions.cpp), and so does a loop (loops.cpp).
#include "base/fail.h"
#include "grad/sweep.h"
#include "ir/scopes.h"
#include "ir/source_ops.h"
#include "tessera/op.h"

namespace tessera {

void accumulate(Pending& pending, int value, Tensor grad, Loc at) {
  auto [it, is_new] = pending.emplace(value, grad);
  if (!is_new) it->second = add(it->second, grad, at);
}

namespace {

/// Marks carries at the beginning of an iteration that are reached at its end. Returns whether
/// there are new ones.
bool enters_next_iteration(const Graph& g, const Node& node, std::vector<bool>& reached) {
  const std::vector<int>& carries = loops_of(g)[loop_of(node)].carries;
  bool more = false;
  for (size_t i = 0; i < carries.size(); ++i) {
    if (!reached[node.in[i]] || reached[carries[i]]) continue;
    reached[carries[i]] = more = true;
  }
  return more;
}

/// Whether a gradient of the results may be one of the operands, or is missing.
bool passes(const Op& op) {
  const bool of_loops = &op == &kLoop || &op == &kLoopCarry || &op == &kLoopSlice;
  return (op.gradient || op.body || op.host || of_loops) && &op != &kStopGradient;
}

/// Per value, whether it depends on any of xs, by floating values and ops that have gradients.
std::vector<bool> downstream(const Graph& g, const std::vector<int>& xs, int first_node,
                             int last_node) {
  std::vector<bool> reached(g.values().size(), false);
  for (int x : xs) reached[x] = true;
  for (int n = first_node; n < last_node; ++n) {
    if (g.nodes()[n].op == &kLoop && enters_next_iteration(g, g.nodes()[n], reached)) {
      n = loops_of(g)[loop_of(g.nodes()[n])].first - 1;  // once more through the iteration
      continue;
    }
    bool any = false;
    for (int v : g.nodes()[n].in) any = any || (reached[v] && is_floating(g.value(v).dtype));
    if (any && passes(*g.nodes()[n].op)) {
      for (int v : g.nodes()[n].out) reached[v] = true;
    }
  }
  return reached;
}

/// The default gradient of a composite: builds its body again and sweeps it.
std::vector<Tensor> body_gradient(const GradCall& call, const Op& op, Loc at) {
  Graph& g = call.graph;
  const int first = static_cast<int>(g.nodes().size());
  std::vector<Tensor> in, results;
  std::vector<int> xs;
  for (const Tensor& t : call.in) {
    in.push_back(is_floating(t.dtype()) ? identity(t, at) : t);
    xs.push_back(in.back().id());
  }
  results = op.body(in, call.attrs);
  const int last = static_cast<int>(g.nodes().size());
  Pending pending;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!call.grads[i].empty()) accumulate(pending, results[i].id(), call.grads[i], at);
  }
  Rematerializer nothing;
  sweep(g, pending, xs, first, last, nothing, at);
  std::vector<Tensor> grads;
  for (int x : xs) grads.push_back(pending.count(x) ? pending[x] : Tensor());
  return grads;
}

void sweep_node(Graph& g, Pending& pending, const std::vector<bool>& reached, int n,
                Rematerializer& rematerializer, Loc at) {
  const Node node = g.nodes()[n];  // a copy: the graph grows
  Attrs attrs = node.attrs;        // what it draws again, it draws in the gradient's loop
  if (attrs.has("repeat_loops")) rename_loops(attrs, rematerializer.loops());
  GradCall call{g, attrs, {}, {}, {}};
  bool any = false;
  std::vector<std::string> prefer;
  for (int v : node.out) {
    call.out.emplace_back(&g, rematerializer.value(n, v));
    auto it = pending.find(v);
    call.grads.push_back(it == pending.end() ? Tensor() : it->second);
    any = any || !call.grads.back().empty();
    for (const std::string& p : g.value(v).prefer) prefer.push_back(p);
  }
  bool wanted = false;
  for (int v : node.in) {
    call.in.emplace_back(&g, rematerializer.value(n, v));
    wanted = wanted || (reached[v] && is_floating(g.value(v).dtype));
    for (const std::string& p : g.value(v).prefer) prefer.push_back(p);
  }
  if (!any || !wanted) return;
  if (!node.op->gradient && !node.op->body) {  // of comparisons and floor() it is zero
    TESSERA_REQUIRE(
        !node.op->host,
        "[{0}] the op '{0}' has no gradient, and one is asked for that goes through "
        "'{1}': give the op one (@{0}.gradient in Python, Op::gradient in C++), or take "
        "stop_gradient() of its operands ({2})",
        node.op->name, g.value(node.out[0]).name, node.at.to_string());
    return;
  }
  RecomputeScope group(g, rematerializer.recompute_group(n));
  SourceScope source(g, node, prefer, rematerializer.recomputes(n) ? ".again.grad" : ".grad");
  std::vector<Tensor> grads =
      node.op->gradient ? node.op->gradient(call) : body_gradient(call, *node.op, at);
  TESSERA_CHECK(grads.size() == node.in.size(), "[{}] its gradient has {} results for {} operands",
                node.op->name, grads.size(), node.in.size());
  for (size_t i = 0; i < grads.size(); ++i) {
    if (grads[i].empty() || !reached[node.in[i]]) continue;
    TESSERA_CHECK(grads[i].shape() == call.in[i].shape() && grads[i].dtype() == call.in[i].dtype(),
                  "[{}] the gradient of operand {} is {} {} where {} {} is needed", node.op->name,
                  i, to_string(grads[i].dtype()), grads[i].shape().to_string(),
                  to_string(call.in[i].dtype()), call.in[i].shape().to_string());
    accumulate(pending, node.in[i], grads[i], at);
  }
}

}  // namespace

void sweep(Graph& g, Pending& pending, const std::vector<int>& xs, int first_node, int last_node,
           Rematerializer& rematerializer, Loc at) {
  const std::vector<bool> reached = downstream(g, xs, first_node, last_node);
  sweep_range(g, pending, reached, {first_node, last_node}, rematerializer, at);
}

void sweep_range(Graph& g, Pending& pending, const std::vector<bool>& reached,
                 const SweepRange& range, Rematerializer& rematerializer, Loc at) {
  for (int n = range.last; n > range.first;) {
    const int region = region_that_ends(g, range, n);
    if (region >= 0) {
      n = regions_of(g)[region].first;
      sweep_region(g, pending, reached, region, rematerializer, at);
      continue;
    }
    --n;
    if (!range.visits(g, g.nodes()[n].loop)) continue;
    rematerializer.reach(g, n);
    if (g.nodes()[n].op == &kLoop) {
      sweep_loop(g, pending, reached, n, rematerializer, at);
    } else {
      sweep_node(g, pending, reached, n, rematerializer, at);
    }
  }
}

namespace {

/// The ids of xs. Throws usage errors where y has no gradient by one of them.
std::vector<int> checked_ids(Tensor y, const std::vector<Tensor>& xs) {
  const Graph& g = y.graph();
  auto require_floating = [&](Tensor t) {
    TESSERA_REQUIRE(
        is_floating(t.dtype()),
        "'{}' ({}) is {}; only floating tensors have gradients, so cast it before it is used",
        t.name(), g.producer(t.id()).at.to_string(), to_string(t.dtype()));
  };
  require_floating(y);
  TESSERA_REQUIRE(
      is_open(g, g.producer(y.id()).loop),
      "'{}' is made by each iteration of a loop that has ended; return it from the iterations",
      y.name());
  std::vector<int> ids;
  for (const Tensor& x : xs) {
    TESSERA_REQUIRE(&x.graph() == &g, "'{}' belongs to another graph", x.name());
    require_floating(x);
    require_outside_rules(x);
    ids.push_back(x.id());
  }
  return ids;
}

}  // namespace

std::vector<Tensor> gradients(Tensor y, const std::vector<Tensor>& xs, Loc at) {
  return gradients(y, xs, GradientOptions(), at);
}

std::vector<Tensor> gradients(Tensor y, const std::vector<Tensor>& xs,
                              const GradientOptions& options, Loc at) {
  const std::vector<int> ids = on_behalf_of("gradients", at, [&] { return checked_ids(y, xs); });
  Graph& g = y.graph();
  const int last = static_cast<int>(g.nodes().size());
  Rematerializer rematerializer(g, y.id(), options);
  Pending pending;
  pending[y.id()] = constant(g, 1, y.dtype(), y.shape(), at);
  sweep(g, pending, ids, 0, last, rematerializer, at);
  std::vector<Tensor> result;
  for (const Tensor& x : xs) {
    auto it = pending.find(x.id());
    result.push_back(it != pending.end() ? it->second : constant(g, 0, x.dtype(), x.shape(), at));
  }
  return result;
}

}  // namespace tessera
