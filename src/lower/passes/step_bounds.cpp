#include "lower/passes/step_bounds.h"

#include <algorithm>
#include <limits>
#include <map>

namespace tessera {

StepBounds::StepBounds(const Program& program, const Function& function)
    : function_(function), touches_(program.buffers.size()) {
  std::map<int, std::vector<const Step*>> started;
  for (size_t s = 0; s < function.steps.size(); ++s) {
    const Step& step = function.steps[s];
    note(step, static_cast<int>(s));
    if (step.kind == StepKind::collective) started[step.number].push_back(&step);
    if (step.kind != StepKind::wait) continue;
    for (const Step* member : started[step.number]) note(*member, static_cast<int>(s));
  }
}

void StepBounds::note(const Step& step, int place) {
  for (const View& v : step.in) touches_[static_cast<size_t>(v.buffer)].push_back({place, false});
  for (const View& v : step.out) touches_[static_cast<size_t>(v.buffer)].push_back({place, true});
}

std::pair<int, int> StepBounds::of(int place) const {
  std::pair<int, int> between{-1, std::numeric_limits<int>::max()};
  const auto look = [&](const View& v, bool writes) {
    for (const Touch& t : touches_[static_cast<size_t>(v.buffer)]) {
      if (t.place == place || !(writes || t.writes)) continue;
      if (t.place < place) between.first = std::max(between.first, t.place);
      if (t.place > place) between.second = std::min(between.second, t.place);
    }
  };
  const Step& step = function_.steps[static_cast<size_t>(place)];
  for (const View& v : step.in) look(v, false);
  for (const View& v : step.out) look(v, true);
  return between;
}

void drop_steps(Function& function, const std::vector<char>& gone) {
  std::vector<Step> steps;
  int stores = 0;
  for (int s = 0; s < static_cast<int>(gone.size()); ++s) {
    if (gone[static_cast<size_t>(s)] == 0)
      steps.push_back(std::move(function.steps[static_cast<size_t>(s)]));
    if (s + 1 == function.first_update) stores = static_cast<int>(steps.size());
  }
  function.steps = std::move(steps);
  function.first_update = stores;
}

}  // namespace tessera
