// Collectives computed element by element, from data that is a function of (rank, index): each rank
// knows what every other holds and what it must find in its own result, bit for bit.
#pragma once

#include <cmath>
#include <cstring>
#include <vector>

#include "base/float16.h"
#include "collectives/communicator.h"

namespace tessera::collectives_test {

using Bytes = std::vector<char>;

inline float widen(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

/// The bfloat16 nearest to a finite value, ties to even, by comparing the two neighbours.
inline uint16_t narrow(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const auto low = static_cast<uint16_t>(bits >> 16), high = static_cast<uint16_t>(low + 1);
  const double to_low = std::abs(static_cast<double>(value) - widen(low));
  const double to_high = std::abs(static_cast<double>(widen(high)) - value);
  if (to_low != to_high) return to_low < to_high ? low : high;
  return low % 2 == 0 ? low : high;
}

inline void put(DType dtype, char* place, uint32_t noise) {
  const double fraction = (static_cast<int>(noise % 20011) - 10005) / 97.0;
  auto store = [place](auto value) { std::memcpy(place, &value, sizeof(value)); };
  switch (dtype) {
    case DType::float32:
      return store(static_cast<float>(fraction));
    case DType::float64:
      return store(fraction);
    case DType::bfloat16:
      return store(narrow(static_cast<float>(fraction)));
    case DType::float16:
      return store(to_float16(static_cast<float>(fraction)).bits);
    case DType::int32:
      return store(static_cast<int32_t>(noise));
    case DType::int64:
      return store(static_cast<int64_t>(noise * uint64_t{7777777777}));
    case DType::uint8:
      return store(static_cast<uint8_t>(noise >> 8));
    case DType::bool_:
      return store(static_cast<uint8_t>((noise >> 8) % 3 == 0));
  }
}

inline Bytes data_of(DType dtype, int rank, int64_t count, uint32_t seed) {
  Bytes data(static_cast<size_t>(count * size_of(dtype)));
  for (int64_t i = 0; i < count; ++i) {
    uint32_t x =
        static_cast<uint32_t>(i) * 2654435761u ^ (static_cast<uint32_t>(rank) + 1) * 40503u;
    x = (x ^ seed * 69069u ^ x >> 15) * 2246822519u;
    put(dtype, data.data() + i * size_of(dtype), x ^ x >> 13);
  }
  return data;
}

template <class Wide>
Wide fold(Combiner combiner, Wide a, Wide b) {
  switch (combiner) {
    case Combiner::sum:
      return a + b;
    case Combiner::prod:
      return a * b;
    case Combiner::max:
      return a > b ? a : b;
    case Combiner::min:
      return a < b ? a : b;
    case Combiner::any:
      return static_cast<Wide>(static_cast<uint64_t>(a) | static_cast<uint64_t>(b));
    case Combiner::all:
      return static_cast<Wide>(static_cast<uint64_t>(a) & static_cast<uint64_t>(b));
  }
  return a;
}

/// Combines element `at` of all inputs, in Wide, in the order of rank.
template <class T, class Wide, class Load, class Store>
void fold_as(Combiner combiner, const std::vector<Bytes>& in, int64_t at, char* out, Load load,
             Store store) {
  Wide sum{};
  for (size_t q = 0; q < in.size(); ++q) {
    T next;
    std::memcpy(&next, in[q].data() + at * static_cast<int64_t>(sizeof(T)), sizeof(T));
    sum = q == 0 ? load(next) : fold<Wide>(combiner, sum, load(next));
  }
  const T result = store(sum);
  std::memcpy(out, &result, sizeof(T));
}

inline void fold_any(DType dtype, Combiner combiner, const std::vector<Bytes>& in, int64_t at,
                     char* out) {
  auto same = [](auto x) { return x; };
  // Integers wrap in 64 bits without a sign; comparisons need the sign.
  auto integers = [&]<class T>(T) {
    auto to_signed = [](T x) { return static_cast<int64_t>(x); };
    auto to_unsigned = [](T x) { return static_cast<uint64_t>(x); };
    auto back = [](auto x) { return static_cast<T>(x); };
    if (combiner == Combiner::max || combiner == Combiner::min) {
      return fold_as<T, int64_t>(combiner, in, at, out, to_signed, back);
    }
    return fold_as<T, uint64_t>(combiner, in, at, out, to_unsigned, back);
  };
  switch (dtype) {
    case DType::float32:
      return fold_as<float, float>(combiner, in, at, out, same, same);
    case DType::float64:
      return fold_as<double, double>(combiner, in, at, out, same, same);
    case DType::bfloat16:
      return fold_as<uint16_t, float>(combiner, in, at, out, widen, narrow);
    case DType::float16:
      return fold_as<uint16_t, float>(
          combiner, in, at, out, [](uint16_t bits) { return to_float(Float16{bits}); },
          [](float x) { return to_float16(x).bits; });
    case DType::int32:
      return integers(int32_t{});
    case DType::int64:
      return integers(int64_t{});
    default:
      return integers(uint8_t{});
  }
}

struct Sizes {
  int64_t in = 0, out = 0;
};

inline Sizes sizes_of(const Collective& c, int P, int rank) {
  const int64_t inner = c.outer * c.inner;
  switch (c.kind) {
    case CollectiveKind::all_reduce:
      return {c.count, c.count};
    case CollectiveKind::reduce_scatter:
      return {inner * P, inner};
    case CollectiveKind::all_gather:
      return {inner, inner * P};
    case CollectiveKind::all_to_all: {
      const int64_t all = c.pre * c.s * c.mid * c.c * c.post * P;
      return {all, all};
    }
    case CollectiveKind::broadcast:
      return {rank == c.root ? c.count : 0, c.count};
    case CollectiveKind::exchange:
      return {c.count, c.count};
    case CollectiveKind::barrier:
      return {};
  }
  return {};
}

/// What rank r must find in out, given the in of all ranks and what out held before.
inline Bytes expected(const Collective& c, int P, int r, const std::vector<Bytes>& in, Bytes out) {
  const int64_t b = size_of(c.dtype);
  auto copy = [&](int64_t to, int from, int64_t at) {
    std::memcpy(out.data() + to * b, in[from].data() + at * b, static_cast<size_t>(b));
  };
  auto reduce = [&](int64_t to, int64_t at) {
    fold_any(c.dtype, c.combiner, in, at, out.data() + to * b);
  };
  switch (c.kind) {
    case CollectiveKind::all_reduce:
      for (int64_t i = 0; i < c.count; ++i) reduce(i, i);
      break;
    case CollectiveKind::reduce_scatter:
      for (int64_t o = 0; o < c.outer; ++o) {
        for (int64_t i = 0; i < c.inner; ++i) reduce(o * c.inner + i, (o * P + r) * c.inner + i);
      }
      break;
    case CollectiveKind::all_gather:
      for (int64_t o = 0; o < c.outer; ++o) {
        for (int p = 0; p < P; ++p) {
          for (int64_t i = 0; i < c.inner; ++i) copy((o * P + p) * c.inner + i, p, o * c.inner + i);
        }
      }
      break;
    case CollectiveKind::all_to_all:
      for (int64_t a = 0; a < c.pre; ++a)
        for (int64_t s = 0; s < c.s; ++s)
          for (int64_t m = 0; m < c.mid; ++m)
            for (int64_t k = 0; k < c.c; ++k)
              for (int64_t z = 0; z < c.post; ++z)
                for (int p = 0; p < P; ++p) {
                  if (c.split_first) {
                    copy(((((a * c.s + s) * c.mid + m) * P + p) * c.c + k) * c.post + z, p,
                         ((((a * P + r) * c.s + s) * c.mid + m) * c.c + k) * c.post + z);
                  } else {
                    copy(((((a * P + p) * c.c + k) * c.mid + m) * c.s + s) * c.post + z, p,
                         ((((a * c.c + k) * c.mid + m) * P + r) * c.s + s) * c.post + z);
                  }
                }
      break;
    case CollectiveKind::broadcast:
      for (int64_t i = 0; i < c.count; ++i) copy(i, c.root, i);
      break;
    default:
      break;
  }
  return out;
}

}  // namespace tessera::collectives_test
