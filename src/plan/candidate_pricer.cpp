#include "plan/candidate_pricer.h"

#include <algorithm>

#include "base/threads.h"
#include "lower/layout/rule_layouts.h"

namespace tessera {

namespace {

void scale_times(PricedPlan& p, double factor) {
  for (double* seconds :
       {&p.seconds, &p.compute, &p.slowed, &p.exposed, &p.bubble, &p.bubble_compute, &p.update})
    *seconds *= factor;
  for (PlanAxes& axes : p.by_axes) {
    axes.seconds *= factor;
    axes.exposed *= factor;
  }
}

}  // namespace

PricedPlan CandidatePricer::price(const Candidate& c, bool whole) {
  PricedPlan p = candidates_.pricer().price(candidates_.assignment(c).mesh, candidates_.layout(c),
                                            candidates_.build(c), whole);
  p.rules = candidates_.rules(c);
  p.scoped = c.scoped;
  p.zero = c.storage.stage;
  p.over = candidates_.stored_over(c);
  p.settings = candidates_.settings(c);
  return p;
}

std::vector<PricedCandidate> CandidatePricer::price(const std::vector<Candidate>& batch) {
  std::vector<PricedCandidate> results;
  for (const Candidate& c : batch) results.push_back({c, {}});
  std::vector<std::function<void()>> works;
  for (PricedCandidate& result : results) {
    works.push_back([&] {
      try {
        result.plan = price(result.candidate, false);
      } catch (const Error& e) {
        result.error = e.what();
        result.contradicts = dynamic_cast<const Contradiction*>(&e) != nullptr;
      }
    });
  }
  run_together(works);
  return results;
}

std::vector<PricedCandidate> CandidatePricer::price_scaled(const std::vector<Candidate>& all,
                                                           double scale, double until) {
  std::vector<PricedCandidate> legal;
  for (size_t i = 0; i < all.size() && clock_.seconds() < until; i += kPricingThreads) {
    const size_t end = std::min(i + kPricingThreads, all.size());
    for (PricedCandidate& p : price({all.begin() + static_cast<std::ptrdiff_t>(i),
                                     all.begin() + static_cast<std::ptrdiff_t>(end)})) {
      ++scaled_;
      if (!p.error.empty()) continue;
      scale_times(p.plan, scale);
      legal.push_back(std::move(p));
    }
  }
  return legal;
}

double CandidatePricer::scale_of(const PricedCandidate& plain) {
  if (!candidates_.pricer().is_looped()) return 1;
  const PricedPlan layers = candidates_.pricer().price_layers(
      plain.plan.mesh, candidates_.layout(plain.candidate), candidates_.build(plain.candidate));
  return plain.plan.seconds / layers.seconds;
}

}  // namespace tessera
