#include "runtime/step_recorder.h"

namespace tessera {

void StepRecorder::run(std::vector<BoundStep>& steps, size_t s, const std::function<void()>& run) {
  BoundStep& bound = steps[s];
  if (bound.step->kind == StepKind::collective) {
    if (bound.bucket != nullptr) bound.mark = device_.mark(true);
    return run();
  }
  const Step* shown = bound.step;
  const int begin = device_.mark(false);
  run();
  for (BoundStep& start : steps) {
    if (bound.step->kind != StepKind::wait || start.bucket != bound.bucket || &start == &bound)
      continue;
    shown = start.step;
    marked_.push_back({shown, true, start.mark, device_.mark(true)});
  }
  marked_.push_back({shown, false, begin, device_.mark(false)});
}

void StepRecorder::flush() {
  const std::vector<double> times = device_.marks();
  for (const Marked& m : marked_) {
    const double begin = times.at(static_cast<size_t>(m.begin));
    record_({m.step, m.is_transfer, begin, times.at(static_cast<size_t>(m.end)) - begin});
  }
  marked_.clear();
}

}  // namespace tessera
