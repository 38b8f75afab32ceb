#include "runtime/graph_capture.h"

#include <algorithm>
#include <map>

#include "base/fail.h"

namespace tessera {

namespace {

/// The region of each step, by number, if every step with a reason is one of its own.
std::vector<int> numbers_of(const std::vector<std::string>& why, size_t stores) {
  std::vector<int> number(why.size(), 0);
  int region = 0;
  for (size_t s = 0; s < why.size(); ++s) {
    const bool apart = s == stores || !why[s].empty() || (s > 0 && !why[s - 1].empty());
    if (s > 0 && apart) ++region;
    number[s] = region;
  }
  return number;
}

}  // namespace

std::vector<StepRange> find_regions(const std::vector<Step>& steps, std::vector<std::string> why,
                                    size_t stores) {
  for (bool changed = true; changed;) {
    changed = false;
    const std::vector<int> number = numbers_of(why, stores);
    std::map<int, size_t> open;
    for (size_t s = 0; s < steps.size(); ++s) {
      if (steps[s].kind == StepKind::collective) open.emplace(steps[s].number, s);
      if (steps[s].kind != StepKind::wait) continue;
      const size_t start = open.at(steps[s].number);
      if (number[start] == number[s] && why[start].empty()) continue;
      for (size_t other = start; other <= s; ++other) {
        const bool member = (other == s || steps[other].kind == StepKind::collective) &&
                            steps[other].number == steps[s].number;
        if (!member || !why[other].empty()) continue;
        why[other] = "a step between its start and its wait cannot be captured";
        changed = true;
      }
    }
  }
  const std::vector<int> number = numbers_of(why, stores);
  std::vector<StepRange> regions;
  for (size_t s = 0; s < steps.size(); ++s) {
    const bool fresh = regions.empty() || number[s] != number[s - 1];
    const bool joins =
        !fresh || (!regions.empty() && !regions.back().captured && !why[s].empty() && s != stores);
    if (fresh && !joins) regions.push_back({s, s, why[s].empty(), ""});
    regions.back().last = s + 1;
    if (!why[s].empty() && regions.back().why.empty())
      regions.back().why = fmt::format("{}: {}", steps[s].origin.name, why[s]);
  }
  for (StepRange& r : regions) {
    if (r.captured && r.last - r.first < 2 && steps[r.first].body.empty()) {
      r.captured = false;
      r.why = "one step";
    }
  }
  return regions;
}

}  // namespace tessera
