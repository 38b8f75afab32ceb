#include "plan/choice/step_sum.h"

namespace tessera {

double step_sum(const Function& function, const Costs& costs) {
  double seconds = 0;
  for (const Step& step : function.steps) {
    if (step.kind == StepKind::compute && step.body.empty() && step.kernel != KernelKind::copy)
      seconds += costs.compute(step);
    if (step.kind == StepKind::collective) seconds += costs.collective(step);
  }
  return seconds;
}

double kernel_sum(const Function& function, const Costs& costs) {
  double seconds = 0;
  for (const Step& step : function.steps) {
    if (step.kind != StepKind::compute || !step.body.empty()) continue;
    const KernelInfo& info = info_of(step.kernel);
    const bool stays = info.fusion == Fusion::none || info.fusion == Fusion::epilogue;
    if (stays && !info.is_copy) seconds += costs.compute(step);
  }
  return seconds;
}

}  // namespace tessera
