// Context parallelism of PyTorch, as torch.compile runs it
// (torch/distributed/tensor/experimental/_attention.py, from 2024). Each rank has the first and the
// last interval of two, so a step has half a block of scores on all ranks: no work more. But
// - keys and values are repeated for the heads of the queries before they are gathered, whole;
// - a traced collective is awaited where it starts, so nothing hides it;
// - partial results are merged in float32, in a pass of its own a step;
// - the gradients of keys and values go round in float32, one exchange a step and one to end at
//   their owner, copied into one buffer each time.
#include <algorithm>

#include "benchmarks/published_runs/runs.h"

namespace tessera::runs {

namespace {

/// Bytes that are read and written, for each element of a rank's queries. K and V repeated, and
/// put into one buffer; the first result in float32, the last in bfloat16.
constexpr double kEnds = 4 + 8 + 6 + 6;
constexpr double kMerge = 2 + 4 + 4;
/// Backward: the first gradients of K and V in float32, the last in bfloat16, those of Q as well.
constexpr double kEndsBack = 4 + 8 + 8 + 4 + 6;
constexpr double kMergeBack = 8 + 4 + 8;
constexpr double kQueriesBack = 4 + 2 + 4;
constexpr double kGathered = 4, kSentBack = 8;  ///< of K and V, in bfloat16 and in float32

}  // namespace

void drop_gathers(int axis, Function& function) {
  std::set<int> dropped, others;  // numbers
  const auto is_dropped = [&](const Step& step) {
    return (is_collective(step, CollectiveKind::all_gather) ||
            is_collective(step, CollectiveKind::reduce_scatter)) &&
           step.axes == std::vector<int>{axis};
  };
  for (const Step& step : function.steps) {
    if (step.kind == StepKind::collective)
      (is_dropped(step) ? dropped : others).insert(step.number);
  }
  std::erase_if(function.steps, [&](const Step& step) {
    if (step.kind == StepKind::wait)
      return dropped.contains(step.number) && !others.contains(step.number);
    return is_dropped(step);
  });
}

double ring_seconds(const Function& function, const Costs& costs, int axis) {
  double forward = 0, backward = 0;  // attentions
  double elements = 0;               // of the queries of one
  for (const Step& step : function.steps) {
    if (step.kernel == KernelKind::attention)
      elements = static_cast<double>(elements_stored(step.in[0]));
    forward += step.kernel == KernelKind::attention ? 1 : 0;
    backward += step.kernel == KernelKind::attention_grad ? 1 : 0;
  }
  const auto ranks = static_cast<double>(costs.mesh().axes()[axis].size);
  // What backward computes again shares its gather.
  const double gathers = std::max(forward, 2 * backward);
  const double gather =
      costs.collective(CollectiveKind::all_gather, kGathered * elements * ranks, {axis});
  const double sent = costs.collective(CollectiveKind::exchange, kSentBack * elements, {axis});
  const auto copied = [&](double bytes) {
    return costs.machine().memory_seconds(bytes * elements);
  };
  return gathers * gather + forward * (copied(kEnds) + (ranks - 1) * copied(kMerge)) +
         backward * (ranks * (sent + copied(kQueriesBack)) + copied(kEndsBack) +
                     (ranks - 1) * copied(kMergeBack));
}

}  // namespace tessera::runs
