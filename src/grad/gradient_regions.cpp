// Regions of a graph whose gradient is not that of the single nodes. recompute() copies the nodes:
// the gradient reads the copies, so the values between need not be kept. custom_gradient() asks a
// rule.
#include <algorithm>
#include <unordered_set>

#include "base/fail.h"
#include "grad/sweep.h"
#include "ir/source_ops.h"

namespace tessera {

namespace {

bool is_source(const Graph& g, int node) {
  return g.nodes()[node].op == &kInput || g.nodes()[node].op == &kStored;
}

/// The floating values that the region reads from outside.
std::vector<int> read_by(const Graph& g, const GradientRegion& region) {
  std::vector<int> values;
  std::unordered_set<int> seen;
  for (int n = region.first; n < region.last; ++n) {
    for (int v : g.nodes()[n].in) {
      const int made = g.value(v).node;
      const bool outside = made < region.first || is_source(g, made);
      if (outside && is_floating(g.value(v).dtype) && seen.insert(v).second) values.push_back(v);
    }
  }
  return values;
}

void sweep_copies(Graph& g, Pending& pending, const std::vector<bool>& reached, int r, Loc at) {
  const GradientRegion region = regions_of(g)[r];
  std::vector<int> made;
  bool any = false;
  for (int n = region.first; n < region.last; ++n) {
    if (is_source(g, n)) continue;
    for (int v : g.nodes()[n].out) made.push_back(v), any = any || pending.count(v);
  }
  std::vector<int> xs;
  for (int v : read_by(g, region)) {
    if (reached[v]) xs.push_back(v);
  }
  const bool depends = std::any_of(made.begin(), made.end(), [&](int v) { return reached[v]; });
  if (!any || !depends) return;
  const int first = static_cast<int>(g.nodes().size());
  std::unordered_map<int, int> copies = copy_region(g, r);
  const int last = static_cast<int>(g.nodes().size());
  Pending inner;
  for (int v : made) {
    if (pending.count(v)) inner[copies[v]] = pending[v];
    if (reached[v] && is_floating(g.value(v).dtype)) xs.push_back(copies[v]);
  }
  Rematerializer nothing;
  sweep(g, inner, xs, first, last, nothing, at);
  for (int v : made) {
    if (inner.count(copies[v])) pending[v] = inner[copies[v]];
  }
  for (int v : read_by(g, region)) {
    if (inner.count(v)) accumulate(pending, v, inner[v], at);
  }
}

void ask_rule(Graph& g, Pending& pending, const GradientRegion& region,
              Rematerializer& rematerializer, Loc at) {
  std::vector<Tensor> xs, ys, grads;
  bool any = false;
  for (int v : region.in) xs.emplace_back(&g, rematerializer.value(-1, v));
  for (int v : region.out) {
    ys.emplace_back(&g, rematerializer.value(-1, v));
    const bool has = pending.count(v);
    any = any || has;
    grads.push_back(has ? pending[v] : constant(g, 0, g.value(v).dtype, g.value(v).shape, at));
  }
  for (int n = region.first; n < region.last; ++n) {
    for (int v : g.nodes()[n].out) {
      const bool is_result = std::find(region.out.begin(), region.out.end(), v) != region.out.end();
      TESSERA_REQUIRE(
          is_result || !pending.count(v),
          "[custom_gradient] '{}' is made inside and has a gradient, but is not among its "
          "results ({})",
          g.value(v).name, g.nodes()[n].at.to_string());
    }
  }
  if (!any) return;
  const std::vector<Tensor> results = region.rule(xs, ys, grads);
  const std::string from = g.nodes()[region.first].at.to_string();
  TESSERA_REQUIRE(results.size() == xs.size(),
                  "[custom_gradient] the rule makes {} gradients of {} operands ({})",
                  results.size(), xs.size(), from);
  for (size_t i = 0; i < xs.size(); ++i) {
    if (results[i].empty()) continue;
    TESSERA_REQUIRE(
        results[i].shape() == xs[i].shape() && results[i].dtype() == xs[i].dtype(),
        "[custom_gradient] the gradient of operand {} is {} {} where {} {} is needed ({})", i,
        to_string(results[i].dtype()), results[i].shape().to_string(), to_string(xs[i].dtype()),
        xs[i].shape().to_string(), from);
    accumulate(pending, region.in[i], results[i], at);
  }
}

/// Whether a gradient could flow from `value` to a parameter, a state or a floating input.
bool differentiable(const Graph& g, int value, std::unordered_set<int>& seen) {
  const Node& node = g.producer(value);
  if (!is_floating(g.value(value).dtype) || node.op == &kStopGradient || !seen.insert(value).second)
    return false;
  if (node.op == &kInput || node.op == &kStored) return true;
  return std::any_of(node.in.begin(), node.in.end(),
                     [&](int v) { return differentiable(g, v, seen); });
}

}  // namespace

int region_that_ends(const Graph& g, const SweepRange& range, int end) {
  int best = -1;
  for (size_t r = 0; r < regions_of(g).size(); ++r) {
    const GradientRegion& region = regions_of(g)[r];
    const bool counts = region.last == end && region.first >= range.first &&
                        range.visits(g, region.loop) && (range.loop < 0 || region.rule);
    if (counts && (best < 0 || region.first <= regions_of(g)[best].first))
      best = static_cast<int>(r);
  }
  return best;
}

void sweep_region(Graph& g, Pending& pending, const std::vector<bool>& reached, int region,
                  Rematerializer& rematerializer, Loc at) {
  if (regions_of(g)[region].rule) {
    ask_rule(g, pending, GradientRegion(regions_of(g)[region]), rematerializer, at);
  } else {
    sweep_copies(g, pending, reached, region, at);
  }
}

void require_outside_rules(Tensor x) {
  const Graph& g = x.graph();
  const int node = g.value(x.id()).node;
  for (const GradientRegion& r : regions_of(g)) {
    const bool inside = r.rule && node >= r.first && node < r.last && !is_source(g, node) &&
                        std::find(r.out.begin(), r.out.end(), x.id()) == r.out.end();
    TESSERA_REQUIRE(!inside,
                    "'{}' is made inside a custom_gradient; only what it is given and what it "
                    "returns has one",
                    x.name());
  }
}

std::vector<Tensor> recompute(Graph& g, const std::function<std::vector<Tensor>()>& build) {
  const int first = static_cast<int>(g.nodes().size());
  std::vector<Tensor> results = build();
  add_region(g, {first, 0, {}, {}, nullptr, -1});
  return results;
}

std::vector<Tensor> custom_gradient(
    const std::vector<Tensor>& xs,
    const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& build,
    const GradientRule& rule, Loc at) {
  TESSERA_REQUIRE(!xs.empty() && rule != nullptr,
                  "[custom_gradient] needs operands and a rule ({})", where(at));
  Graph& g = xs[0].graph();
  GradientRegion region{static_cast<int>(g.nodes().size()), 0, {}, {}, rule, -1};
  std::vector<Tensor> results = build(xs);
  for (Tensor& y : results) {
    if (g.value(y.id()).node < region.first) y = identity(y, at);
    region.out.push_back(y.id());
  }
  for (const Tensor& x : xs) region.in.push_back(x.id());
  region.last = static_cast<int>(g.nodes().size());
  for (int v : read_by(g, region)) {
    std::unordered_set<int> seen;
    const bool given = std::find(region.in.begin(), region.in.end(), v) != region.in.end();
    TESSERA_REQUIRE(
        given || !differentiable(g, v, seen),
        "[custom_gradient] reads '{}', which would get no gradient: make it an operand, or take "
        "stop_gradient of it before ({})",
        g.value(v).name, where(at));
  }
  add_region(g, std::move(region));
  return results;
}

}  // namespace tessera
