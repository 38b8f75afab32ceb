// What kernels/cuda/tensor_core.h offers, computed on the host as the PTX manual says where the
// lanes of a warp hold the elements of a fragment. A wrong place in a kernel gives wrong numbers.
// Included by cuda_shim.h.
#pragma once

#include <cmath>

#include "base/float16.h"

namespace tessera::device {

using SharedAddress = const char*;
inline SharedAddress shared_address(const void* x) { return static_cast<const char*>(x); }

template <class T>
uint32_t packed(float first, float second) {
  return narrowed(first, T{}).bits | static_cast<uint32_t>(narrowed(second, T{}).bits) << 16;
}

/// The manual's mma.m16n8k16: lane l is in group l / 4, at place l % 4 of it. A's registers hold
/// columns 2 place + {0, 1} of row group, of row group + 8, and the same 8 columns on; B's hold
/// rows 2 place + {0, 1}, and 8 rows on, of column group; C's columns 2 place + {0, 1} of row
/// group, and of row group + 8.
template <class T>
void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Given {
    float a[4][2], b[2][2];
  } mine;
  const auto half = [](uint32_t x, int h) {
    return to_float(T{static_cast<uint16_t>(h == 0 ? x : x >> 16)});
  };
  for (int h = 0; h < 2; ++h) {
    for (int r = 0; r < 4; ++r) mine.a[r][h] = half(a[r], h);
    mine.b[0][h] = half(b0, h);
    mine.b[1][h] = half(b1, h);
  }
  const auto lanes = shim::exchange(mine);
  const unsigned lane = shim::block.current % 32, group = lane / 4, place = lane % 4;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned below = i / 2, column = place * 2 + i % 2;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned at = k % 8 / 2, on = k / 8;
      c[i] += lanes[group * 4 + at].a[below + 2 * on][k % 2] * lanes[column * 4 + at].b[on][k % 2];
    }
  }
}

/// ldmatrix.x4: lanes 8 m .. 8 m + 7 give where the rows of block m begin; lane l gets of each
/// block, row l / 4, elements 2 (l % 4) and the next one.
inline void load_blocks(SharedAddress row, uint32_t (&to)[4]) {
  shim::check(reinterpret_cast<uintptr_t>(row) % 16 == 0, "a row of a block is not aligned");
  const auto lanes = shim::exchange(row);
  const unsigned lane = shim::block.current % 32;
  for (unsigned m = 0; m < 4; ++m)
    std::memcpy(&to[m], lanes[m * 8 + lane / 4] + lane % 4 * 4, sizeof(uint32_t));
}

/// With .trans: lane l gets column l / 4, of rows 2 (l % 4) and the next one.
inline void load_blocks_transposed(SharedAddress row, uint32_t (&to)[4]) {
  shim::check(reinterpret_cast<uintptr_t>(row) % 16 == 0, "a row of a block is not aligned");
  const auto lanes = shim::exchange(row);
  const unsigned lane = shim::block.current % 32;
  for (unsigned m = 0; m < 4; ++m) {
    uint16_t pair[2];
    for (unsigned h = 0; h < 2; ++h)
      std::memcpy(&pair[h], lanes[m * 8 + lane % 4 * 2 + h] + lane / 4 * 2, sizeof(uint16_t));
    to[m] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
  }
}

/// Copied as late as can be: when the thread waits.
template <int kBytes>
void copy_async(void* to, const void* from, bool there) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  shim::check(reinterpret_cast<uintptr_t>(to) % kBytes == 0 &&
                  reinterpret_cast<uintptr_t>(from) % kBytes == 0,
              "a copy is not aligned");
  std::memset(to, 0xff, kBytes);  // NaN: who reads before has it
  shim::block.fibers[shim::block.current]->copies.push_back({to, there ? from : nullptr, kBytes});
}
inline void wait_copies() {
  auto& copies = shim::block.fibers[shim::block.current]->copies;
  for (const auto& c : copies) {
    if (c.from == nullptr) {
      std::memset(c.to, 0, c.bytes);
    } else {
      std::memcpy(c.to, c.from, c.bytes);
    }
  }
  copies.clear();
}

inline float exp2_fast(float x) { return std::exp2(x); }

}  // namespace tessera::device
