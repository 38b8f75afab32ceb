// Sums in rank order. Up to four inputs are combined in one pass over memory. More are folded block
// by block into an accumulator that stays in the L1 cache, so each input is read once and the
// result written once. Every element is finished before the next block starts, and inputs are read
// before the element is written, so `out` may be one of the inputs. bfloat16 and float16 are
// accumulated in float32 and rounded once, to nearest even. Integers wrap around; max and min of
// floats propagate NaN.
#include <cstring>
#include <type_traits>

#include "base/fail.h"
#include "base/float16.h"
#include "collectives/communicator.h"

// The loops are compiled for the baseline and for wider vectors; the choice is made when the
// program is loaded. Sanitizers cannot run code that early.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define TESSERA_CLONES __attribute__((target_clones("default", "avx2")))
#else
#define TESSERA_CLONES
#endif

namespace tessera {
namespace {

constexpr int64_t kBlock = 2048;

template <class T>
constexpr bool kIsNarrow = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

template <class T>
using Accumulator = std::conditional_t<kIsNarrow<T>, float, T>;

template <class T>
inline Accumulator<T> load(const T& value) {
  if constexpr (kIsNarrow<T>) {
    return to_float(value);
  } else {
    return value;
  }
}

template <class T>
inline void store(T& place, Accumulator<T> value) {
  if constexpr (kIsNarrow<T>) {
    place = narrowed(value, T{});
  } else {
    place = value;
  }
}

template <Combiner C, class A>
inline A apply(A a, A b) {
  if constexpr (C == Combiner::sum || C == Combiner::prod) {
    if constexpr (std::is_integral_v<A>) {
      using U = std::make_unsigned_t<A>;
      const U x = static_cast<U>(a), y = static_cast<U>(b);
      return static_cast<A>(C == Combiner::sum ? static_cast<U>(x + y) : static_cast<U>(x * y));
    } else {
      return C == Combiner::sum ? a + b : a * b;
    }
  } else if constexpr (C == Combiner::max) {
    return a > b || a != a ? a : b;
  } else if constexpr (C == Combiner::min) {
    return a < b || a != a ? a : b;
  } else if constexpr (std::is_integral_v<A>) {
    return static_cast<A>(C == Combiner::any ? (a | b) : (a & b));
  } else {
    return a;
  }
}

template <class T, Combiner C>
TESSERA_CLONES void combine2(const T* a, const T* b, T* out, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) store(out[i], apply<C>(load(a[i]), load(b[i])));
}

template <class T, Combiner C>
TESSERA_CLONES void combine3(const T* a, const T* b, const T* c, T* out, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    store(out[i], apply<C>(apply<C>(load(a[i]), load(b[i])), load(c[i])));
  }
}

template <class T, Combiner C>
TESSERA_CLONES void combine4(const T* a, const T* b, const T* c, const T* d, T* out, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const auto abc = apply<C>(apply<C>(load(a[i]), load(b[i])), load(c[i]));
    store(out[i], apply<C>(abc, load(d[i])));
  }
}

template <class T, Combiner C>
TESSERA_CLONES void open_block(const T* a, const T* b, Accumulator<T>* sums, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sums[i] = apply<C>(load(a[i]), load(b[i]));
}

template <class T, Combiner C>
TESSERA_CLONES void fold_one(const T* a, Accumulator<T>* sums, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sums[i] = apply<C>(sums[i], load(a[i]));
}

template <class T, Combiner C>
TESSERA_CLONES void fold_two(const T* a, const T* b, Accumulator<T>* sums, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sums[i] = apply<C>(apply<C>(sums[i], load(a[i])), load(b[i]));
}

template <class T, Combiner C>
TESSERA_CLONES void close_block(const Accumulator<T>* sums, const T* a, T* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) store(out[i], apply<C>(sums[i], load(a[i])));
}

template <class T, Combiner C>
void combine_many(const void* const* inputs, int ranks, T* out, int64_t count) {
  alignas(64) Accumulator<T> sums[kBlock];
  for (int64_t at = 0; at < count; at += kBlock) {
    const int64_t n = count - at < kBlock ? count - at : kBlock;
    auto input = [&](int q) { return static_cast<const T*>(inputs[q]) + at; };
    open_block<T, C>(input(0), input(1), sums, n);
    int q = 2;
    for (; q + 2 < ranks; q += 2) fold_two<T, C>(input(q), input(q + 1), sums, n);
    if (q + 1 < ranks) fold_one<T, C>(input(q++), sums, n);
    close_block<T, C>(sums, input(q), out + at, n);
  }
}

template <class T, Combiner C>
void combine_as(const void* const* inputs, int ranks, void* result, int64_t count) {
  T* out = static_cast<T*>(result);
  auto input = [&](int q) { return static_cast<const T*>(inputs[q]); };
  switch (ranks) {
    case 1:
      if (out != input(0) && count > 0) std::memmove(out, input(0), count * sizeof(T));
      return;
    case 2:
      return combine2<T, C>(input(0), input(1), out, count);
    case 3:
      return combine3<T, C>(input(0), input(1), input(2), out, count);
    case 4:
      return combine4<T, C>(input(0), input(1), input(2), input(3), out, count);
    default:
      return combine_many<T, C>(inputs, ranks, out, count);
  }
}

template <class T>
void combine_with(Combiner combiner, const void* const* inputs, int ranks, void* out,
                  int64_t count) {
  switch (combiner) {
    case Combiner::sum:
      return combine_as<T, Combiner::sum>(inputs, ranks, out, count);
    case Combiner::max:
      return combine_as<T, Combiner::max>(inputs, ranks, out, count);
    case Combiner::min:
      return combine_as<T, Combiner::min>(inputs, ranks, out, count);
    case Combiner::prod:
      return combine_as<T, Combiner::prod>(inputs, ranks, out, count);
    case Combiner::any:
    case Combiner::all:
      if constexpr (std::is_same_v<T, uint8_t>) {
        return combiner == Combiner::any ? combine_as<T, Combiner::any>(inputs, ranks, out, count)
                                         : combine_as<T, Combiner::all>(inputs, ranks, out, count);
      }
  }
  fail(ErrorKind::internal, "[combine] {} of this dtype passed the checks", to_string(combiner));
}

}  // namespace

void local_reduce(const void* const* inputs, int ranks, void* out, int64_t count, DType dtype,
                  Combiner combiner) {
  switch (dtype) {
    case DType::float32:
      return combine_with<float>(combiner, inputs, ranks, out, count);
    case DType::float64:
      return combine_with<double>(combiner, inputs, ranks, out, count);
    case DType::bfloat16:
      return combine_with<BFloat16>(combiner, inputs, ranks, out, count);
    case DType::float16:
      return combine_with<Float16>(combiner, inputs, ranks, out, count);
    case DType::int32:
      return combine_with<int32_t>(combiner, inputs, ranks, out, count);
    case DType::int64:
      return combine_with<int64_t>(combiner, inputs, ranks, out, count);
    case DType::uint8:
    case DType::bool_:
      return combine_with<uint8_t>(combiner, inputs, ranks, out, count);
  }
}

}  // namespace tessera
