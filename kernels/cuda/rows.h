// What the kernels of steps with row instructions can take.
#pragma once

#include <cstdint>

namespace tessera::cuda {

/// Elements of the longest row: those that run at one time have to fit into the L2 cache, because
/// long rows are read once a phase.
inline constexpr int64_t kLongestRow = 1 << 17;

}  // namespace tessera::cuda
