// What an entry of the search stands for: its rules, its build, its price.
#include <thread>

#include "api/plan_search.h"
#include "lower/home.h"
#include "tessera/storage.h"

namespace tessera {

std::vector<PlanSearch::Priced> PlanSearch::price(const std::vector<Entry>& batch) {
  std::vector<Priced> results;
  for (const Entry& entry : batch) results.push_back({entry, {}});
  const auto work = [&](Priced& result) {
    try {
      result.plan = price_one(result.from, false);
    } catch (const Error& e) {
      result.error = e.what();
      result.contradicts = dynamic_cast<const Contradiction*>(&e) != nullptr;
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < results.size(); ++i) threads.emplace_back(work, std::ref(results[i]));
  work(results[0]);
  for (std::thread& thread : threads) thread.join();
  return results;
}

PricedPlan PlanSearch::price_one(const Entry& entry, bool whole) {
  const Assignment& a = assignments_[entry.assignment];
  PricedPlan p = pricer_.price(a.mesh, layout_of(entry), build_of(entry), whole);
  p.rules = rules_of(entry);
  p.scoped = entry.scoped;
  p.zero = entry.storage.stage;
  p.over = over_text(entry);
  return p;
}

std::string PlanSearch::over_text(const Entry& entry) const {
  std::string over;
  for (const int axis : entry.storage.axes)
    over += (over.empty() ? "" : "+") + assignments_[entry.assignment].mesh.axes()[axis].name;
  return over;
}

const Graph& PlanSearch::few_layers() {
  const PlanModel& model = pricer_.model();
  return *pricer_
              .built({std::min<int64_t>(2, model.layers), model.again[0].first,
                      model.again[0].second, model.microbatches[0]})
              .graph;
}

std::string PlanSearch::rules_of(const Entry& entry) const {
  const std::string text = space_.layout_text(assignments_[entry.assignment]);
  return text + (text.empty() || entry.scoped.empty() ? "" : ";") + entry.scoped;
}

std::string PlanSearch::layout_of(const Entry& entry) {
  const Assignment& a = assignments_[entry.assignment];
  std::string text = rules_of(entry);
  const std::string over = over_text(entry);
  if (over.empty()) return text;
  const std::string more =
      storage_rules(few_layers(), a.mesh, Layout::parse(text), entry.storage.stage, over);
  return text + (text.empty() || more.empty() ? "" : ";") + more;
}

PlanBuild PlanSearch::build_of(const Entry& entry) const {
  const PlanModel& model = pricer_.model();
  const bool as_trips = pricer_.is_looped() && entry.storage.stage == 3;
  return {model.layers, model.again[entry.again].first,
          as_trips ? model.regather_of_loop : model.again[entry.again].second,
          microbatches(entry.parts)};
}

int64_t PlanSearch::microbatches(size_t parts) const {
  return pricer_.model().microbatches.at(parts);
}

}  // namespace tessera
