#include "program/attention_step.h"

#include <algorithm>
#include <cmath>

namespace tessera {

namespace {
constexpr size_t kForwardInputs = 3, kGradInputs = 7, kSegmentInputs = 2;
constexpr int64_t kWidestWindow = int64_t{1} << 40;  // sums of positions do not overflow
}  // namespace

AttentionStep::AttentionStep(const Step& step) : AttentionStep(step, step.as<AttentionSpec>()) {}

AttentionStep::AttentionStep(const Step& step, const AttentionSpec& spec)
    : length_dim(static_cast<size_t>(spec.length)),
      memory_dim(static_cast<size_t>(spec.memory_length)),
      key_dim(static_cast<size_t>(spec.key_dim)),
      value_dim(static_cast<size_t>(spec.value_dim < 0 ? spec.key_dim : spec.value_dim)),
      backward(step.out.size() > 2),
      mask{step.in.at(0).sizes[length_dim], step.in.at(1).sizes[memory_dim], spec.causal,
           std::min(spec.window, kWidestWindow), spec.memory},
      scale(spec.scale),
      soft_cap(spec.soft_cap),
      dropout(spec.dropout),
      has_segments(spec.segments),
      has_slopes(spec.slopes),
      entries_dim(static_cast<int>(spec.by_distance)),
      starts(backward ? kGradInputs : kForwardInputs),
      start_inputs(step.in.size() - starts - (has_segments ? kSegmentInputs : 0) -
                   (has_slopes ? 1 : 0) - (has_entries() ? 1 : 0)) {}

bool AttentionStep::is_loop(size_t dim) const {
  return dim != length_dim && dim != memory_dim && dim != key_dim && dim != value_dim &&
         static_cast<int>(dim) != entries_dim;
}

// As the op dropout decides: (h + 0.5) / 2^23 < 1 - rate in float32, where the left side is exact.
uint32_t AttentionBits::limit(double rate) {
  const double most = static_cast<double>(static_cast<float>(1 - rate)) * (1 << 23);
  return static_cast<uint32_t>(std::ceil(most - 0.5));
}

}  // namespace tessera
