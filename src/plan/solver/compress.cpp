// Drops points in time at which memory cannot bind unless it binds at another point too. Two points
// differ only in the uses that begin or end between them. So point m can be dropped in favour of
// point k if no choice can use more at m than at k by more than m has more capacity. Each point is
// compared with the last one kept.
#include <algorithm>
#include <map>

#include "plan/solver/model.h"

namespace tessera::solver {

namespace {

using Change = std::map<int, std::vector<int64_t>>;  // extra bytes by node and strategy

void add_change(Change& to, int v, const std::vector<int64_t>& usage, int sign) {
  std::vector<int64_t>& c = to[v];
  c.resize(usage.size());
  for (size_t s = 0; s < usage.size(); ++s) c[s] += sign * usage[s];
}

/// The most that a choice can add: the maximum of `sign` times the change.
int64_t most(const Change& change, int sign) {
  int64_t sum = 0;
  for (const auto& [v, c] : change) {
    int64_t m = sign * c[0];
    for (const int64_t x : c) m = std::max(m, sign * x);
    sum += m;
  }
  return sum;
}

struct Kept {
  int point;
  Change since;  // since the last point that was kept
};

std::vector<int> choose_moments(const Model& model) {
  std::vector<Change> begins(model.points + 1);
  for (int v = 0; v < model.nodes(); ++v) {
    for (const Use& use : model.uses[v]) {
      add_change(begins[use.first], v, use.usage, 1);
      add_change(begins[use.last], v, use.usage, -1);
    }
  }
  std::vector<Kept> kept;
  Change since;
  for (int m = 0; m < model.points; ++m) {
    for (const auto& [v, c] : begins[m]) add_change(since, v, c, 1);
    bool covered = false;
    while (!kept.empty() && !covered) {
      const int64_t room = model.capacity[m] - model.capacity[kept.back().point];
      covered = most(since, 1) <= room;
      if (covered || most(since, -1) > -room) break;
      for (const auto& [v, c] : kept.back().since) add_change(since, v, c, 1);
      kept.pop_back();
    }
    if (covered) continue;
    kept.push_back({m, std::move(since)});
    since.clear();
  }
  std::vector<int> points;
  for (const Kept& k : kept) points.push_back(k.point);
  return points;
}

/// By point: the most bytes that a choice can use.
std::vector<int64_t> most_bytes(const Model& model) {
  std::vector<int64_t> use(model.points + 1);
  for (int v = 0; v < model.nodes(); ++v) {
    for (const Use& u : model.uses[v]) {
      const int64_t largest = *std::max_element(u.usage.begin(), u.usage.end());
      use[u.first] += largest;
      use[u.last] -= largest;
    }
  }
  for (int m = 1; m < model.points; ++m) use[m] += use[m - 1];
  return use;
}

std::vector<Use> remap(const std::vector<Use>& uses, const std::vector<int>& number) {
  std::map<std::pair<int, int>, std::vector<int64_t>> merged;
  for (const Use& use : uses) {
    const int first = number[use.first], last = number[use.last];
    if (first == last) continue;
    std::vector<int64_t>& to = merged[{first, last}];
    to.resize(use.usage.size());
    for (size_t s = 0; s < to.size(); ++s) to[s] += use.usage[s];
  }
  std::vector<Use> result;
  for (auto& [range, usage] : merged) {
    if (std::any_of(usage.begin(), usage.end(), [](int64_t u) { return u != 0; })) {
      result.push_back({range.first, range.second, std::move(usage)});
    }
  }
  return result;
}

}  // namespace

void compress_moments(Model& model) {
  const std::vector<int64_t> largest = most_bytes(model);
  std::vector<int> number(model.points + 1);  // index among the kept ones
  std::vector<int64_t> capacity;
  std::vector<int> chosen = choose_moments(model);
  std::erase_if(chosen, [&](int m) { return largest[m] <= model.capacity[m]; });
  for (const int m : chosen) {
    number[m + 1] = 1;
    capacity.push_back(model.capacity[m]);
  }
  for (int m = 0; m < model.points; ++m) number[m + 1] += number[m];
  for (std::vector<Use>& uses : model.uses) uses = remap(uses, number);
  model.points = static_cast<int>(chosen.size());
  model.capacity = std::move(capacity);
}

}  // namespace tessera::solver
