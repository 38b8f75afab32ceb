// Building blocks of generated kernels: vectors of elements, random words by element, reductions
// over the threads of a row. Compiled by NVRTC for a GPU, and in the tests by a host compiler with
// a shim that emulates threads.
#pragma once

#ifdef __CUDACC_RTC__
#pragma nv_diag_suppress 177  // generated kernels declare every index, used or not
#endif

#include "base/float16.h"
#include "kernels/common/pointwise.h"
#include "kernels/cuda/fault.h"

namespace tessera::device {

/// N neighbouring elements; up to 16 bytes are one access.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vec {
  T x[N];
};

template <int N, class T>
__device__ __forceinline__ Vec<T, N> load(const T* from) {
  return *reinterpret_cast<const Vec<T, N>*>(from);
}
template <int N, class T>
__device__ __forceinline__ void store(T* to, const Vec<T, N>& v) {
  *reinterpret_cast<Vec<T, N>*>(to) = v;
}

__device__ __forceinline__ float widen(BFloat16 x) { return to_float(x); }
__device__ __forceinline__ float widen(Float16 x) { return to_float(x); }
template <class T>
__device__ __forceinline__ T widen(T x) {
  return x;
}
__device__ __forceinline__ void narrow(float x, BFloat16& to) { to = to_bfloat16(x); }
__device__ __forceinline__ void narrow(float x, Float16& to) { to = to_float16(x); }
template <class T>
__device__ __forceinline__ void narrow(T x, T& to) {
  to = x;
}

/// Uniform random bits per element; neighbouring elements share a Philox counter.
struct Random {
  unsigned long long seed, stream, counter;
  PhiloxWords words;
  __device__ __forceinline__ Random(long long seed_, long long stream_)
      : seed(static_cast<unsigned long long>(seed_)),
        stream(static_cast<unsigned long long>(stream_)),
        counter(~0ull),
        words{{0, 0, 0, 0}} {}
  __device__ __forceinline__ int64_t at(long long index) {
    const unsigned long long wanted = static_cast<unsigned long long>(index) >> 2;
    if (wanted != counter) {
      counter = wanted;
      words = philox4x32(wanted, stream, seed);
    }
    const int word = static_cast<int>(index & 3);
    return word == 0 ? words.w[0] : word == 1 ? words.w[1] : word == 2 ? words.w[2] : words.w[3];
  }
};

/// clamp(floor((constant + factor * scalar) / divisor), low, high).
__device__ __forceinline__ long long scalar_expr(long long constant, long long factor,
                                                 long long scalar, long long divisor, long long low,
                                                 long long high) {
  const long long sum = constant + factor * scalar;
  const long long x = sum / divisor - (sum % divisor < 0 ? 1 : 0);
  return x < low ? low : x > high ? high : x;
}

struct Sum {
  template <class T>
  static __device__ __forceinline__ T identity() {
    return T(0);
  }
  template <class T>
  static __device__ __forceinline__ T apply(T a, T b) {
    return formula::Add::apply(a, b);
  }
};
struct Prod {
  template <class T>
  static __device__ __forceinline__ T identity() {
    return T(1);
  }
  template <class T>
  static __device__ __forceinline__ T apply(T a, T b) {
    return formula::Mul::apply(a, b);
  }
};
struct Max {
  template <class T>
  static __device__ __forceinline__ T identity() {
    if constexpr (std::is_floating_point_v<T>) {
      return -std::numeric_limits<T>::infinity();
    } else {
      return std::numeric_limits<T>::min();
    }
  }
  template <class T>
  static __device__ __forceinline__ T apply(T a, T b) {
    return formula::Maximum::apply(a, b);
  }
};
struct Min {
  template <class T>
  static __device__ __forceinline__ T identity() {
    if constexpr (std::is_floating_point_v<T>) {
      return std::numeric_limits<T>::infinity();
    } else {
      return std::numeric_limits<T>::max();
    }
  }
  template <class T>
  static __device__ __forceinline__ T apply(T a, T b) {
    return formula::Minimum::apply(a, b);
  }
};
struct Any {
  template <class T>
  static __device__ __forceinline__ T identity() {
    return T(0);
  }
  template <class T>
  static __device__ __forceinline__ T apply(T a, T b) {
    return formula::BitOr::apply(a, b);
  }
};
struct All {
  template <class T>
  static __device__ __forceinline__ T identity() {
    return static_cast<T>(~T(0));
  }
  template <class T>
  static __device__ __forceinline__ T apply(T a, T b) {
    return formula::BitAnd::apply(a, b);
  }
};

template <class T>
__device__ __forceinline__ T shuffle_xor(T x, int lanes) {
  if constexpr (sizeof(T) == 1) {
    return static_cast<T>(__shfl_xor_sync(0xffffffffu, static_cast<int>(x), lanes));
  } else {
    return __shfl_xor_sync(0xffffffffu, x, lanes);
  }
}

/// Combines x over the kThreads neighbouring threads of a row (a power of two), in an order that
/// depends on kThreads only; every thread gets the result. Every thread of the block must call it.
/// `shared`: one number per warp of the block.
template <class F, int kThreads, class T>
__device__ __forceinline__ T reduce_threads(T x, T* shared) {
#pragma unroll
  for (int lanes = (kThreads < 32 ? kThreads : 32) / 2; lanes > 0; lanes /= 2) {
    x = F::apply(x, shuffle_xor(x, lanes));
  }
  if constexpr (kThreads > 32) {
    constexpr int kWarps = kThreads / 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[warp] = x;
    __syncthreads();
    const int first = warp / kWarps * kWarps;
    x = shared[first];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) x = F::apply(x, shared[first + w]);
  }
  return x;
}

/// Inclusive scan: the sum of x and the x of all threads before, over the kThreads threads of a
/// block (a power of two), which must all call it. `shared`: kThreads numbers, which hold the
/// threads' results afterwards.
template <int kThreads, class T>
__device__ __forceinline__ T scan_threads(T x, T* shared) {
  const int t = static_cast<int>(threadIdx.x);
  shared[t] = x;
  __syncthreads();
  for (int lanes = 1; lanes < kThreads; lanes *= 2) {
    const T before = t >= lanes ? shared[t - lanes] : T(0);
    __syncthreads();
    if (t >= lanes) shared[t] = Sum::apply(before, shared[t]);
    __syncthreads();
  }
  return shared[t];
}

/// y[t] = decays[t] y[t - 1] + parts[t] over the kThreads threads of a block (a power of two),
/// which must all call it, with nothing before the first: `parts` holds y afterwards, and `decays`
/// the product of the decays up to there.
template <int kThreads>
__device__ __forceinline__ void scan_threads_with_decay(double* parts, double* decays) {
  const int t = static_cast<int>(threadIdx.x);
  __syncthreads();
  for (int lanes = 1; lanes < kThreads; lanes *= 2) {
    const bool has_before = t >= lanes;
    const double part = has_before ? parts[t - lanes] : 0.0;
    const double decay = has_before ? decays[t - lanes] : 1.0;
    __syncthreads();
    parts[t] += decays[t] * part;
    decays[t] *= decay;
    __syncthreads();
  }
}

constexpr long long kElsewhere = -1, kNowhere = -2;
/// The local row of index i of a gather or scatter; kElsewhere if another rank has it. Of n rows
/// this rank has [first, first + size). Out of range: kRule 0 reports it, 1 drops it (kNowhere), 2
/// clamps it.
template <int kRule>
__device__ __forceinline__ long long local_row(long long i, long long first, long long size,
                                               long long n, long long position,
                                               unsigned long long step, Fault* fault) {
  if (i < 0 || i >= n) {
    if (kRule == 0 && atomicCAS(&fault->step, 0ull, step) == 0) {
      fault->kind = kIndexFault;
      fault->index = i;
      fault->position = position;
      fault->size = n;
    }
    if (kRule != 2 || n == 0) return kNowhere;
    i = i < 0 ? 0 : n - 1;
  }
  const long long row = i - first;
  return row >= 0 && row < size ? row : kElsewhere;
}

}  // namespace tessera::device
