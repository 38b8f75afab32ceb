#include "cost/work.h"

#include <algorithm>

#include "program/attention_step.h"

namespace tessera {

double flops_done(const Step& step) {
  const auto all = static_cast<double>(step.flops);
  if (step.kernel != KernelKind::attention && step.kernel != KernelKind::attention_part &&
      step.kernel != KernelKind::attention_grad)
    return all;
  const Sight sight = AttentionStep(step).sight;
  double share = sight.causal ? 0.5 : 1;
  if (sight.window > 0) {
    const auto reach = static_cast<double>(sight.causal ? sight.window : 2 * sight.window - 1);
    share = std::min(share, reach / static_cast<double>(std::max<int64_t>(sight.keys, 1)));
  }
  return all * share;
}

}  // namespace tessera
