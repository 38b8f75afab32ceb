// Checked arithmetic for sizes given by a caller.
#pragma once

#include <cstdint>
#include <string>

#include "base/fail.h"

namespace tessera {

/// Holds the sum or product of any two sizes.
__extension__ typedef __int128 Wide;

/// Maximum number of elements. Their bytes, and small multiples of them, still fit into an int64.
inline constexpr int64_t kMostElements = (int64_t{1} << 60) - 1;

/// Returns `n`, which `what` describes. Throws a usage error if its magnitude is above
/// kMostElements.
inline int64_t checked_size(Wide n, const std::string& what) {
  TESSERA_REQUIRE(n <= kMostElements && n >= -kMostElements,
                  "{} comes to {:.4g}; at most 2^60 can be counted", what, static_cast<double>(n));
  return static_cast<int64_t>(n);
}

}  // namespace tessera
