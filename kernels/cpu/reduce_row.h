// Reductions of dense rows. 64 lanes (16 in short rows) walk blocks of 1024 elements; the results
// of the blocks are combined by pairwise summation (like a binary counter). The order depends on
// the size only, so every instruction set computes the same bits. In an unnamed namespace, because
// each instruction set compiles its own copy.
#pragma once

#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/common/types.h"

// For the instruction set that a target pragma selected; compilers define no macro for that.
#if !defined(TESSERA_VECTOR_BYTES)
#define TESSERA_VECTOR_BYTES 16
#endif

namespace tessera::cpu {

using namespace kernels;

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
constexpr int64_t kRun = 1024;      // elements per block of a row
constexpr int64_t kLanes = 16;      // combined as 8, 4, 2, 1
constexpr int64_t kManyLanes = 64;  // in long blocks: several sums are in flight at a time
constexpr int kLevels = 48;

/// A dense row in memory.
template <class T>
struct Plain {
  using Value = Compute<T>;
  static constexpr bool has_vectors = std::is_same_v<T, Value> && std::is_floating_point_v<T>;
  const T* x;

  Value at(int64_t i) const { return Value(load_as(x[i])); }
  template <class Vector>
  Vector vector(int64_t i) const {
    Vector v;
    std::memcpy(&v, x + i, sizeof(v));
    return v;
  }
  Plain from(int64_t i) const { return {x + i}; }
};

template <class F, class Vector>
Vector apply_vectors(Vector a, Vector b) {
  if constexpr (std::is_same_v<F, Sum>) {
    return a + b;
  } else if constexpr (std::is_same_v<F, Prod>) {
    return a * b;
  } else {
    return F::apply(a, b);
  }
}

/// lanes[l] op= x[i + l] for l < count and every multiple i of count below `n`; the remainder of x
/// is left out. `fresh`: the lanes are uninitialized. Written with vector types: compilers make no
/// vector selects while traps must be preserved, and keep few lanes in registers.
template <class F, int64_t count, bool fresh = false, class Row>
void reduce_lanes(typename Row::Value* lanes, Row x, int64_t n) {
  using T = typename Row::Value;
#if defined(__GNUC__)
  if constexpr (Row::has_vectors) {
    constexpr size_t kBytes = count * sizeof(T);
    constexpr size_t kWidth = kBytes < TESSERA_VECTOR_BYTES ? kBytes : TESSERA_VECTOR_BYTES;
    typedef T Vector __attribute__((vector_size(kWidth)));
    constexpr int64_t kVectors = kBytes / kWidth, kEach = kWidth / sizeof(T);
    Vector acc[kVectors];
    if constexpr (fresh) {
      for (Vector& a : acc) a = Vector{} + F::template identity<T>();
    } else {
      std::memcpy(acc, lanes, kBytes);
    }
    for (int64_t i = 0; i + count <= n; i += count) {
      for (int64_t v = 0; v < kVectors; ++v)
        acc[v] = apply_vectors<F>(acc[v], x.template vector<Vector>(i + v * kEach));
    }
    std::memcpy(lanes, acc, kBytes);
    return;
  }
#endif
  for (int64_t l = 0; fresh && l < count; ++l) lanes[l] = F::template identity<T>();
  for (int64_t i = 0; i + count <= n; i += count) {
    for (int64_t l = 0; l < count; ++l) lanes[l] = F::apply(lanes[l], x.at(i + l));
  }
}

/// One block of a dense row: lanes, then a tree over the lanes.
template <class F, class Row>
typename Row::Value reduce_lanes_of(Row x, int64_t n) {
  using A = typename Row::Value;
  A lanes[kManyLanes];
  const Plain<A> part{lanes};
  if (n >= 4 * kManyLanes) {
    reduce_lanes<F, kManyLanes, true>(lanes, x, n);
    const int64_t done = n / kManyLanes * kManyLanes;
    reduce_lanes<F, 32>(lanes, part.from(32), 32);
    reduce_lanes<F, 16>(lanes, part.from(16), 16);
    if (done < n) reduce_lanes<F, kLanes>(lanes, x.from(done), n - done);
  } else {
    reduce_lanes<F, kLanes, true>(lanes, x, n);
  }
  for (int64_t i = n / kLanes * kLanes, l = 0; i < n; ++i, ++l)
    lanes[l] = F::apply(lanes[l], x.at(i));
  reduce_lanes<F, 8>(lanes, part.from(8), 8);
  reduce_lanes<F, 4>(lanes, part.from(4), 4);
  reduce_lanes<F, 2>(lanes, part.from(2), 2);
  return F::apply(lanes[0], lanes[1]);
}

template <class F, class T>
Compute<T> reduce_block(const T* x, int64_t n) {
  return reduce_lanes_of<F>(Plain<T>{x}, n);
}

/// Pairwise combination of block results, in order: a binary counter of partial results.
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

/// Reduces any number of elements of a dense row.
template <class F, class Row>
typename Row::Value reduce_any(Row x, int64_t n) {
  if (n > 0 && n <= kRun) return reduce_lanes_of<F>(x, n);
  Pairwise<F, typename Row::Value> sum;
  for (int64_t i = 0; i < n; i += kRun)
    sum.add(reduce_lanes_of<F>(x.from(i), n - i < kRun ? n - i : kRun));
  return sum.total();
}

template <class F, class T>
Compute<T> reduce_row(const T* x, int64_t n) {
  return reduce_any<F>(Plain<T>{x}, n);
}

}  // namespace
}  // namespace tessera::cpu
