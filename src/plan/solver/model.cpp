#include "plan/solver/model.h"

#include <algorithm>

namespace tessera::solver {

Value value_of(const Model& model, const std::vector<int>& choice) {
  Value value;
  value.cost = model.base;
  const auto add = [&](int64_t cost) {
    if (cost >= kWall) {
      ++value.forbidden;
    } else {
      value.cost += cost;
    }
  };
  std::vector<int64_t> use(model.points + 1);
  for (int v = 0; v < model.nodes(); ++v) {
    add(model.cost[v][choice[v]]);
    add_use(model, v, choice[v], 1, use);
  }
  for (const Pair& pair : model.pairs) {
    add(pair.cost[static_cast<size_t>(choice[pair.a]) * model.size(pair.b) + choice[pair.b]]);
  }
  int64_t now = 0;
  for (int m = 0; m < model.points; ++m) {
    now += use[m];
    value.excess += std::max<int64_t>(0, now - model.capacity[m]);
  }
  return value;
}

std::vector<std::vector<int64_t>> priced_costs(const Model& model,
                                               const std::vector<int64_t>& prices) {
  std::vector<__int128> before(model.points + 1);
  for (int m = 0; m < model.points; ++m) before[m + 1] = before[m] + prices[m];
  std::vector<std::vector<int64_t>> costs = model.cost;
  for (int v = 0; v < model.nodes(); ++v) {
    for (const Use& use : model.uses[v]) {
      const __int128 price = before[use.last] - before[use.first];
      if (price == 0) continue;
      for (size_t s = 0; s < costs[v].size(); ++s) {
        const __int128 held = price * use.usage[s] / model.limit;
        costs[v][s] += static_cast<int64_t>(std::min<__int128>(held, kMostCost));
      }
    }
  }
  return costs;
}

int64_t price_of_capacity(const Model& model, const std::vector<int64_t>& prices) {
  __int128 sum = model.limit - 1;
  for (int m = 0; m < model.points; ++m)
    sum += static_cast<__int128>(prices[m]) * model.capacity[m];
  return static_cast<int64_t>(sum >= 0 ? sum / model.limit
                                       : -((model.limit - 1 - sum) / model.limit));
}

}  // namespace tessera::solver
