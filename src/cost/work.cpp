#include "cost/work.h"

#include <algorithm>

#include "program/attention_step.h"

namespace tessera {

namespace {

/// The share of all pairs that causal order leaves: half, or that of the last slice of the queries,
/// if ranks have slices of them.
double causal_share(const Step& step, const AttentionMask& mask, const Mesh& mesh) {
  if (step.exprs.empty() || step.exprs[0].axis_terms.empty()) return 0.5;
  double before = 0;
  for (const auto& [axis, factor] : step.exprs[0].axis_terms)
    before += static_cast<double>(factor * (mesh.axes()[static_cast<size_t>(axis)].size - 1));
  const double seen = before + static_cast<double>(mask.queries) / 2;
  return std::min(1.0, seen / static_cast<double>(std::max<int64_t>(mask.keys, 1)));
}

}  // namespace

double flops_done(const Step& step, const Mesh& mesh) {
  const auto all = static_cast<double>(step.flops);
  if (step.kernel != KernelKind::attention && step.kernel != KernelKind::attention_part &&
      step.kernel != KernelKind::attention_grad)
    return all;
  const AttentionMask mask = AttentionStep(step).mask;
  double share = step.as<AttentionSpec>().visible;
  if (share < 0) share = mask.causal ? causal_share(step, mask, mesh) : 1;
  if (mask.window > 0) {
    const auto reach = static_cast<double>(mask.causal ? mask.window : 2 * mask.window - 1);
    share = std::min(share, reach / static_cast<double>(std::max<int64_t>(mask.keys, 1)));
  }
  return all * share;
}

}  // namespace tessera
