// Narrow graphs, exactly. Prices of memory give the best bound, forest moves a good plan, and
// partial plans close the gap between the two.
#include <algorithm>

#include "plan/solver/forest_search.h"
#include "plan/solver/partial_plans.h"
#include "plan/solver/search.h"

namespace tessera::solver {

namespace {

class Prices {
 public:
  Prices(const Model& model, Elimination& elimination, const Clock& clock, Found& found)
      : model_(model), elimination_(elimination), clock_(clock), found_(found) {}

  /// Runs the elimination with these prices. Keeps the bound and the choice if better, and sets
  /// slope_, the gradient of the bound.
  int64_t run(const std::vector<int64_t>& prices) {
    const int64_t total = elimination_.run(priced_costs(model_, prices), choice_);
    if (total >= kWall) return kWall;
    offer(model_, choice_, clock_, found_);
    const int64_t bound = model_.base + total - price_of_capacity(model_, prices);
    if (found_.prices.empty() || bound > found_.bound) {
      found_.bound = std::max<int64_t>(bound, 0);
      found_.prices = prices;
    }
    std::vector<int64_t> use(model_.points + 1);
    for (int v = 0; v < model_.nodes(); ++v) add_use(model_, v, choice_[v], 1, use);
    slope_.assign(model_.points, 0);
    int64_t now = 0;
    for (int m = 0; m < model_.points; ++m) {
      now += use[m];
      slope_[m] = static_cast<double>(now - model_.capacity[m]) / static_cast<double>(model_.limit);
    }
    return bound;
  }

  /// With one point the bound is a concave, piecewise linear function of one price. Begins with a
  /// rising and a falling line, and replaces one by the line at their intersection until that is
  /// one of the two.
  void search_one(int64_t bound) {
    double low = 0, high = static_cast<double>(std::max<int64_t>(1024, bound / 16));
    double low_bound = static_cast<double>(bound), low_slope = slope_[0];
    double high_bound = 0, high_slope = 1;
    while (high < static_cast<double>(kMostCost)) {
      high_bound = static_cast<double>(run({static_cast<int64_t>(high)}));
      high_slope = slope_[0];
      if (high_slope <= 0) break;
      low = high, low_bound = high_bound, low_slope = high_slope;
      high *= 4;
    }
    for (int i = 0; i < 60 && high_slope <= 0; ++i) {
      const double at =
          (high_bound - high_slope * high - low_bound + low_slope * low) / (low_slope - high_slope);
      const int64_t price = static_cast<int64_t>(at);
      if (price <= static_cast<int64_t>(low) || price >= static_cast<int64_t>(high)) break;
      const double b = static_cast<double>(run({price}));
      const bool rises = slope_[0] > 0;
      if ((rises ? low_slope : high_slope) == slope_[0]) break;
      (rises ? low : high) = static_cast<double>(price);
      (rises ? low_bound : high_bound) = b;
      (rises ? low_slope : high_slope) = slope_[0];
    }
  }

  void search_many() {
    std::vector<int64_t> prices(model_.points);
    double step = 1;
    int stale = 0;
    for (int i = 0; i < 200 && !clock_.over(); ++i) {
      const int64_t before = found_.bound;
      const int64_t bound = run(prices);
      if (is_closed(model_, found_)) return;
      if (found_.bound > before) {
        stale = 0;
      } else if (++stale == 8) {
        stale = 0;
        step /= 2;
        prices = found_.prices;
      }
      double square = 0;
      for (int m = 0; m < model_.points; ++m) {
        if (slope_[m] < 0 && prices[m] == 0) slope_[m] = 0;
        square += slope_[m] * slope_[m];
      }
      if (square == 0) return;
      const int64_t target = !found_.has ? found_.bound + found_.bound / 10 + 1024 : found_.cost;
      const double distance = static_cast<double>(std::max<int64_t>(1, target - bound));
      for (int m = 0; m < model_.points; ++m) {
        const double moved = static_cast<double>(prices[m]) + step * distance * slope_[m] / square;
        prices[m] = static_cast<int64_t>(std::clamp(moved, 0.0, static_cast<double>(kMostCost)));
      }
    }
  }

 private:
  const Model& model_;
  Elimination& elimination_;
  const Clock& clock_;
  Found& found_;
  std::vector<int> choice_;
  std::vector<double> slope_;
};

void improve(const Model& model, const Clock& clock, int64_t moves, const std::vector<int>& start,
             Found& found) {
  ForestSearch search(model, !found.has ? start : found.choice, 1);
  search.set_prices(found.prices);
  for (int64_t i = 0; i < moves && !clock.over() && !is_closed(model, found); ++i) {
    if (search.move(0)) offer(model, search.choice(), clock, found);
  }
}

}  // namespace

void solve_narrow(const Model& model, Elimination& elimination, const Options& options,
                  const Clock& clock, Found& found) {
  found.how = "elimination";
  Prices prices(model, elimination, clock, found);
  std::vector<int64_t> none(model.points);
  const int64_t bound = prices.run(none);
  found.impossible = bound >= kWall || (model.nodes() == 0 && !found.has);
  if (found.impossible || is_closed(model, found)) return;
  std::vector<int> choice;
  if (model.points == 1) {
    prices.search_one(bound);
  } else {
    prices.search_many();
  }
  elimination.run(priced_costs(model, found.prices), choice);
  improve(model, clock, 100 + model.nodes(), choice, found);
  if (is_closed(model, found)) return;
  found.how = "elimination and partial plans";
  elimination.marginals();
  PartialPlans plans{false, {}};
  if (model.points <= 64) {
    plans = search_partial_plans(model, elimination, found.prices, found.cost, options.labels);
  }
  if (!plans.complete) {
    found.how = "elimination and search";
    return improve(model, clock, int64_t{1} << 40, choice, found);
  }
  if (!plans.choice.empty()) offer(model, plans.choice, clock, found);
  found.impossible = !found.has;
  found.bound = found.cost;
}

}  // namespace tessera::solver
