// Reductions of dense rows: 16 lanes walk blocks of 1024 elements, and the results of the blocks
// are combined as a binary counter does (pairwise summation). The order depends on nothing but the
// size: every instruction set computes the same bits. In an unnamed namespace, because each of them
// compiles a copy of its own.
#pragma once

#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/cpu/types.h"

namespace tessera::cpu {
namespace {

struct Sum {
  template <class T>
  TESSERA_HD static constexpr T identity() {
    return T(0);
  }
  template <class T>
  TESSERA_HD static T apply(T a, T b) {
    return wrapping_add(a, b);
  }
};
struct Prod {
  template <class T>
  TESSERA_HD static constexpr T identity() {
    return T(1);
  }
  template <class T>
  TESSERA_HD static T apply(T a, T b) {
    return wrapping_mul(a, b);
  }
};
struct Max {
  template <class T>
  TESSERA_HD static constexpr T identity() {
    if constexpr (std::is_floating_point_v<T>) return -std::numeric_limits<T>::infinity();
    return std::numeric_limits<T>::lowest();
  }
  template <class T>
  TESSERA_HD static T apply(T a, T b) {
    return ((a >= b) | (a != a)) ? a : b;
  }
};
struct Min {
  template <class T>
  TESSERA_HD static constexpr T identity() {
    if constexpr (std::is_floating_point_v<T>) return std::numeric_limits<T>::infinity();
    return std::numeric_limits<T>::max();
  }
  template <class T>
  TESSERA_HD static T apply(T a, T b) {
    return ((a <= b) | (a != a)) ? a : b;
  }
};
constexpr int64_t kRun = 1024;  // elements of one block of a row
constexpr int64_t kLanes = 16;  // combined as 8, 4, 2, 1
constexpr int kLevels = 48;

/// Written with vectors: compilers make no vector selects where traps must be kept apart, and jump.
template <class F, class T>
constexpr bool kByVectors = std::is_floating_point_v<T> &&
                            (std::is_same_v<F, Max> || std::is_same_v<F, Min>);

/// lanes[l] op= x[i + l] for l < count and every i below `n` that is a multiple of count; the rest
/// of x is left out.
template <class F, int64_t count, class T>
void reduce_lanes(Compute<T>* lanes, const T* x, int64_t n) {
#if defined(__GNUC__)
  if constexpr (kByVectors<F, T>) {
#if defined(__AVX2__)
    constexpr size_t kWidth = count * sizeof(T) >= 32 ? 32 : 16;
#else
    constexpr size_t kWidth = 16;
#endif
    typedef T Vector __attribute__((vector_size(kWidth)));
    constexpr size_t kBytes = count * sizeof(T), kVectors = (kBytes + kWidth - 1) / kWidth;
    Vector acc[kVectors] = {}, next[kVectors] = {};
    std::memcpy(acc, lanes, kBytes);
    for (int64_t i = 0; i + count <= n; i += count) {
      std::memcpy(next, x + i, kBytes);
      for (size_t v = 0; v < kVectors; ++v) acc[v] = F::apply(acc[v], next[v]);
    }
    std::memcpy(lanes, acc, kBytes);
    return;
  }
#endif
  for (int64_t i = 0; i + count <= n; i += count) {
    for (int64_t l = 0; l < count; ++l)
      lanes[l] = F::apply(lanes[l], Compute<T>(load_as(x[i + l])));
  }
}

/// Block of a dense row: lanes, then a tree over the lanes.
template <class F, class T>
Compute<T> reduce_block(const T* x, int64_t n) {
  using A = Compute<T>;
  A lanes[kLanes];
  for (int64_t l = 0; l < kLanes; ++l) lanes[l] = F::template identity<A>();
  reduce_lanes<F, kLanes>(lanes, x, n);
  for (int64_t i = n / kLanes * kLanes, l = 0; i < n; ++i, ++l)
    lanes[l] = F::apply(lanes[l], A(load_as(x[i])));
  reduce_lanes<F, 8>(lanes, lanes + 8, 8);
  reduce_lanes<F, 4>(lanes, lanes + 4, 4);
  reduce_lanes<F, 2>(lanes, lanes + 2, 2);
  reduce_lanes<F, 1>(lanes, lanes + 1, 1);
  return lanes[0];
}

/// Pairwise combination of the results of blocks, in order: a binary counter of partial results.
template <class F, class A>
class Pairwise {
 public:
  TESSERA_HD void add(A part) {
    int l = 0;
    for (uint64_t c = count_++; c & 1u; c >>= 1) part = F::apply(level_[l++], part);
    level_[l] = part;
  }
  TESSERA_HD A total() const {
    A acc = F::template identity<A>();
    bool any = false;
    for (int l = 0; count_ >> l != 0; ++l) {
      if (((count_ >> l) & 1u) == 0) continue;
      acc = any ? F::apply(level_[l], acc) : level_[l];
      any = true;
    }
    return acc;
  }

 private:
  A level_[kLevels];
  uint64_t count_ = 0;
};

/// Any number of elements of a dense row.
template <class F, class T>
Compute<T> reduce_row(const T* x, int64_t n) {
  if (n > 0 && n <= kRun) return reduce_block<F>(x, n);
  Pairwise<F, Compute<T>> sum;
  for (int64_t i = 0; i < n; i += kRun)
    sum.add(reduce_block<F>(x + i, n - i < kRun ? n - i : kRun));
  return sum.total();
}

}  // namespace
}  // namespace tessera::cpu
