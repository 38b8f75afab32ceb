// The size that a buffer takes in its arena, for the memory planner and for code that computes
// addresses.
#pragma once

#include <algorithm>

#include "program/program.h"

namespace tessera {

/// In bytes, a multiple of 64. For a buffer with `alternates`: the size of one of its two copies.
inline int64_t room_of(const Buffer& buffer) {
  return std::max<int64_t>((buffer.bytes + 63) / 64 * 64, 64);
}

}  // namespace tessera
