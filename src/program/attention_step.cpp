#include "program/attention_step.h"

#include <algorithm>

namespace tessera {

namespace {
constexpr size_t kInputs = 3, kGradInputs = 7, kSegmentInputs = 2;
constexpr int64_t kWidestWindow = int64_t{1} << 40;  // sums of positions do not overflow
}  // namespace

AttentionStep::AttentionStep(const Step& step)
    : length_dim(static_cast<size_t>(step.attrs.get<int64_t>("length"))),
      memory_dim(static_cast<size_t>(step.attrs.get<int64_t>("memory_length"))),
      key_dim(static_cast<size_t>(step.attrs.get<int64_t>("key_dim"))),
      value_dim(
          static_cast<size_t>(step.attrs.get<int64_t>("value_dim", static_cast<int64_t>(key_dim)))),
      backward(step.out.size() > 2),
      sight{step.in.at(0).sizes[length_dim], step.in.at(1).sizes[memory_dim],
            step.attrs.get<int64_t>("causal") != 0,
            std::min(step.attrs.get<int64_t>("window", 0), kWidestWindow),
            step.attrs.get<int64_t>("memory", 0)},
      scale(step.attrs.get<double>("scale")),
      soft_cap(step.attrs.get<double>("soft_cap", 0)),
      has_segments(step.attrs.get<int64_t>("segments", 0) != 0),
      has_slopes(step.attrs.get<int64_t>("slopes", 0) != 0),
      starts(backward ? kGradInputs : kInputs),
      start_inputs(step.in.size() - starts - (has_segments ? kSegmentInputs : 0) -
                   (has_slopes ? 1 : 0)) {}

}  // namespace tessera
