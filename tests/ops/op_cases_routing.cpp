// Rows of the routers of mixtures of experts: gates by plain loops over tokens and experts.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/op_cases.h"
#include "tessera/nn.h"

namespace tessera::test {

namespace {

using Tensors = OpCase::Tensors;
using Wholes = std::vector<Whole>;
using nn::Further, nn::Gating, nn::RoutingOptions;

constexpr int64_t kGroups = 2, kTokens = 7, kExperts = 3;
const Dim batch("batch", kGroups), tokens("length", kTokens), experts("experts", kExperts);

/// One group: gates [tokens][experts], and what becomes of them, [tokens][experts][capacity].
struct Group {
  std::vector<double> gates, combine;
  std::vector<double> importance;
  int64_t capacity;
  int64_t lost = 0;

  double& gate(int64_t t, int64_t e) { return gates[t * kExperts + e]; }
  void place(int64_t t, int64_t e, int64_t c, double g) {
    combine[(t * kExperts + e) * capacity + c] = g;
  }
};

Group group_of(const Whole& logits, int64_t group, int64_t capacity, bool without_best) {
  Group g;
  g.capacity = capacity;
  g.combine.assign(kTokens * kExperts * capacity, 0);
  g.importance.assign(kTokens, 1);
  for (int64_t t = 0; t < kTokens; ++t) {
    const auto first = logits.data.begin() + (group * kTokens + t) * kExperts;
    std::vector<double> x(first, first + kExperts);
    if (without_best) *std::max_element(x.begin(), x.end()) = -INFINITY;
    double sum = 0;
    for (int64_t e = 0; e < kExperts; ++e) sum += std::exp(x[e]);
    for (int64_t e = 0; e < kExperts; ++e) g.gates.push_back(std::exp(x[e]) / sum);
  }
  return g;
}

void tokens_choose(Group& g, const RoutingOptions& o) {
  std::vector<int64_t> used(kExperts, 0), choice(kTokens * o.choices, -1);
  std::vector<double> gate(kTokens * o.choices, 0);
  for (int64_t t = 0; t < kTokens; ++t) {
    std::vector<int64_t> order(kExperts);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return g.gate(t, a) > g.gate(t, b); });
    double sum = 0;
    size_t next = 0;
    for (int64_t i = 0; i < o.choices; ++i) {
      if (i == 0 && !o.first_for_all ? g.importance[t] < 1 : g.importance[t] <= 0) continue;
      choice[t * o.choices + i] = order[next++];
      sum += gate[t * o.choices + i] = g.gate(t, choice[t * o.choices + i]);
    }
    for (int64_t i = 0; i < o.choices && o.renormalize && o.choices > 1 && sum > 0; ++i)
      gate[t * o.choices + i] /= sum;
  }
  std::vector<bool> routed(kTokens, false);
  for (int64_t i = 0; i < o.choices; ++i) {
    const std::vector<int64_t> before = used;
    std::vector<int64_t> seen(kExperts, 0);
    std::vector<bool> now = routed;
    for (int64_t t = 0; t < kTokens; ++t) {
      const int64_t e = choice[t * o.choices + i];
      const double chosen = gate[t * o.choices + i];
      if (e < 0 || (o.gating == Gating::rescue && routed[t])) continue;
      if (i > 0 && o.further == Further::none) continue;
      if (i > 0 && o.further == Further::threshold && chosen <= o.threshold) continue;
      const int64_t place = before[e] + seen[e]++;
      if (place >= g.capacity) {
        ++g.lost;
        continue;
      }
      used[e] = place + 1;
      now[t] = true;
      g.place(t, e, place, chosen);
    }
    routed = now;
  }
  if (o.gating == Gating::rescue) {
    g.lost = 0;
    for (int64_t t = 0; t < kTokens; ++t) g.lost += g.importance[t] > 0 && !routed[t];
  }
}

void by_gate(Group& g, bool of_all) {
  std::vector<bool> placed(kTokens, false);
  for (int64_t e = 0; e < kExperts; ++e) {
    std::vector<int64_t> order;
    for (int64_t t = 0; t < kTokens; ++t) {
      bool best = true;
      for (int64_t other = 0; other < kExperts; ++other)
        best = best && g.gate(t, other) <= g.gate(t, e);
      if (of_all || best) order.push_back(t);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return g.gate(a, e) > g.gate(b, e); });
    for (size_t c = 0; c < order.size() && static_cast<int64_t>(c) < g.capacity; ++c) {
      g.place(order[c], e, static_cast<int64_t>(c), g.gate(order[c], e));
      placed[order[c]] = true;
    }
  }
  g.lost = std::count(placed.begin(), placed.end(), false);
}

OpCase routed(const std::string& name, RoutingOptions o, bool with_importance = false) {
  const Dim places = o.capacity[0];
  OpCase row{name,
             {real("logits", {batch, tokens, experts}, -2, 2)},
             {"batch", "length", "experts", "capacity"},
             {}};
  if (with_importance) row.in.push_back(integers("halves", {batch, tokens}, 0, 2));
  row.build = [=](Graph&, const Tensors& x) -> Tensors {
    RoutingOptions options = o;
    if (with_importance) options.importance = cast(x[1], DType::float32) * 0.5;
    const nn::Routing r = nn::route(x[0], "length", "experts", options);
    return {r.combine, r.dispatch, r.balance, r.z, r.dropped, r.load};
  };
  row.expect = [=](const Wholes& in) {
    const int64_t capacity = places.size;
    Whole out({"batch", "length", "experts", places.name}, {kGroups, kTokens, kExperts, capacity});
    for (int64_t b = 0; b < kGroups; ++b) {
      Group g = group_of(in[0], b, capacity, o.second_place == 1);
      for (int64_t t = 0; with_importance && t < kTokens; ++t)
        g.importance[t] = in[1].data[b * kTokens + t] / 2;
      if (o.gating == Gating::tokens_choose || o.gating == Gating::rescue) {
        tokens_choose(g, o);
      } else {
        by_gate(g, o.gating == Gating::experts_choose);
      }
      std::copy(g.combine.begin(), g.combine.end(),
                out.data.begin() + b * kTokens * kExperts * capacity);
    }
    return out;
  };
  return row;
}

/// A group of experts for each token, then an expert of the group: what the first router gave less
/// than half of is a second choice of the second, which nobody asks for a first one.
OpCase two_levels() {
  const Dim outer("outer", 2), inner("inner", 2), model("model", 3), places("places", 4);
  return {"route_in_two_levels",
          {real("x", {batch, tokens, model}, -2, 2), parameter(real("w1", {model, outer})),
           parameter(real("w2", {outer, model, inner}))},
          {"batch", "length", "outer", "inner", "model"},
          [=](Graph&, const Tensors& x) -> Tensors {
            RoutingOptions o;
            o.capacity = {places};
            Tensor logits = einsum({x[0], x[1]}, {batch, tokens, outer});
            const nn::Routing first = nn::route(logits, "length", "outer", o);
            const Shape sent{outer, batch, places, model};
            Tensor inside = einsum({x[0], first.dispatch}, sent);
            Tensor gate = einsum({first.combine}, {outer, batch, places});
            o.importance = (cast(gate > 0.0, gate.dtype()) + cast(gate > 0.5, gate.dtype())) * 0.5;
            o.capacity = {Dim("slots", 2)};
            Tensor further = einsum({inside, x[2]}, {outer, batch, places, inner});
            const nn::Routing second = nn::route(further, "places", "inner", o);
            Tensor back = einsum({inside, reduce_sum(second.combine, "slots")},
                                 {outer, batch, places, inner, model});
            return {einsum({reduce_sum(back, "inner"), first.combine}, {batch, tokens, model}),
                    second.dispatch};
          }};
}

/// With choices that are drawn: the same under every layout.
void add_drawn(std::vector<OpCase>& rows, const RoutingOptions& o) {
  const auto add = [&](const char* name, const RoutingOptions& drawn) {
    rows.push_back(routed(name, drawn));
    rows.back().expect = {};
    rows.back().random = true;
  };
  RoutingOptions sampled = o, further = o, second = o;
  sampled.sample = 0.5;
  add("route_sampled", sampled);
  further.threshold = 0.5;
  further.further = Further::random;
  add("route_top_2_random", further);
  second.second_place = second.second_sample = 0.5;
  add("route_second_place_sampled", second);
}

}  // namespace

std::vector<OpCase> routing_cases() {
  std::vector<OpCase> rows;
  rows.push_back(two_levels());
  RoutingOptions o;
  o.capacity = {Dim("capacity", 3)};
  rows.push_back(routed("route_top_2", o));
  rows.push_back(routed("route_top_2_importance", o, true));
  o.first_for_all = true;
  rows.push_back(routed("route_first_for_all", o, true));
  o.first_for_all = false;
  o.further = Further::threshold;
  o.threshold = 0.3;
  rows.push_back(routed("route_top_2_threshold", o));
  o.further = Further::none;
  rows.push_back(routed("route_top_2_first_only", o));
  o.further = Further::all;
  o.choices = 3;
  rows.push_back(routed("route_top_3", o));
  o.gating = Gating::rescue;
  o.renormalize = false;
  rows.push_back(routed("route_no_token_left_behind", o));
  o.gating = Gating::tokens_choose;
  o.choices = 1;
  rows.push_back(routed("route_switch", o));
  o.second_place = 1;
  rows.push_back(routed("route_second_place", o));
  o.second_place = 0;
  o.gating = Gating::strongest;
  rows.push_back(routed("route_switch_max", o));
  o.gating = Gating::experts_choose;
  rows.push_back(routed("route_expert_choice", o));
  for (bool padded : {false, true}) {
    o.gating = padded ? Gating::tokens_choose : Gating::tokens_compete;
    o.choices = padded ? 2 : 1;
    o.second_balance = padded ? 0.5 : 0;
    rows.push_back(routed(padded ? "route_second_balance" : "route_tokens_compete", o, padded));
    rows.back().expect = {};
  }
  o.choices = 1;
  o.second_balance = 0;
  o.gating = Gating::tokens_choose;
  o.capacity = {Dim::bounded("capacity", 4)};
  OpCase bounded = routed("route_bounded_capacity", o);
  bounded.sizes = {{"capacity", 4}};
  bounded.expect = {};
  rows.push_back(bounded);
  o.capacity = {Dim("capacity", 3)};
  o.choices = 2;
  add_drawn(rows, o);
  return rows;
}

}  // namespace tessera::test
