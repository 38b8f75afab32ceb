// The room that a buffer has in its arena: the plan and who reads addresses from it agree on it.
#pragma once

#include <algorithm>

#include "program/program.h"

namespace tessera {

/// Bytes, a multiple of 64; of a buffer that alternates, those of one of the two.
inline int64_t room_of(const Buffer& buffer) {
  return std::max<int64_t>((buffer.bytes + 63) / 64 * 64, 64);
}

}  // namespace tessera
