#include "program/schedules/alternating_order.h"

#include <algorithm>

namespace tessera {

std::vector<ScheduledWork> alternating_order(const PipelineShape& shape, int64_t stage) {
  std::vector<size_t> forward, backward;
  for (size_t p = 0; p < shape.passes.size(); ++p) {
    if (shape.passes[p].work == StageWork::forward) forward.push_back(p);
    if (shape.passes[p].work == StageWork::backward) backward.push_back(p);
  }
  // Counted as if as many chunks went either way and the number of stages divided that of
  // microbatches. What there is not is left out.
  const int64_t stages = shape.stages,
                chunks = std::ssize(forward.size() > backward.size() ? forward : backward),
                all = (shape.microbatches + stages - 1) / stages * stages * chunks;
  const int64_t behind = stages - 1 - stage;
  int64_t ahead = std::min(all, chunks == 1 ? behind : 2 * behind + (chunks - 1) * stages);
  if (chunks > 1 && all == stages * chunks) ahead = all;
  std::vector<ScheduledWork> list;
  const auto add = [&](int64_t k, const std::vector<size_t>& passes) {
    const auto chunk = static_cast<size_t>(k % (stages * chunks) / stages);
    const int64_t microbatch = k / (stages * chunks) * stages + k % stages;
    if (chunk < passes.size() && microbatch < shape.microbatches)
      list.push_back({passes[chunk], microbatch});
  };
  for (int64_t k = 0; k < ahead; ++k) add(k, forward);
  for (int64_t k = 0; k < all; ++k) {
    if (ahead + k < all) add(ahead + k, forward);
    add(k, backward);
  }
  return list;
}

}  // namespace tessera
