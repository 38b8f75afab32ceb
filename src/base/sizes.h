// Arithmetic of sizes that a caller may have chosen too large.
#pragma once

#include <cstdint>
#include <string>

#include "base/fail.h"

namespace tessera {

/// Holds sums and products of two sizes, whatever they are.
__extension__ typedef __int128 Wide;

/// The most elements that anything has: their bytes can be counted, and a few times as many.
inline constexpr int64_t kMostElements = (int64_t{1} << 60) - 1;

/// `n`, of what `what` says. Throws a usage error if it is beyond kMostElements on either side.
inline int64_t checked_size(Wide n, const std::string& what) {
  require(n <= kMostElements && n >= -kMostElements,
          "{} comes to {:.4g}; at most 2^60 can be counted", what, static_cast<double>(n));
  return static_cast<int64_t>(n);
}

}  // namespace tessera
