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

}  // namespace tessera
