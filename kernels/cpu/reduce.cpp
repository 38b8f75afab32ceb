// Reductions. The dims of the input are split into kept and reduced ones.
//
// If the input is densest along a reduced dim, every output element is a sum over rows
// (reduce_row.h). If it is densest along a kept dim, strips of up to 2048 output elements are
// accumulated, four rows at a time: memory is read in long pieces, and in order if a row is no
// longer than a strip. In both cases the partial results of fixed-size blocks are combined by
// pairwise summation (like a binary counter): the rounding error grows with the logarithm of the
// count, and the order depends on the sizes only.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/common/nest.h"
#include "kernels/cpu/ordered_places.h"
#include "kernels/cpu/reduce_row.h"
#include "kernels/cpu/tables.h"

namespace tessera::cpu {

using namespace kernels;

namespace {

struct Any {
  template <class T>
  static constexpr T identity() {
    return T(0);
  }
  template <class T>
  static T apply(T a, T b) {
    return T(a | b);
  }
};
struct All {
  template <class T>
  static constexpr T identity() {
    return T(~T(0));
  }
  template <class T>
  static T apply(T a, T b) {
    return T(a & b);
  }
};

constexpr int64_t kReduceStrip = 2048;  // outputs accumulated together
constexpr int64_t kRows = 64;           // rows per block of a strip
constexpr int64_t kAtOnce = 4;          // rows at a time; divides kRows

template <class F, class T>
Compute<T> reduce_strided(const T* x, int64_t stride, int64_t n) {
  using A = Compute<T>;
  A acc = F::template identity<A>();
  for (int64_t i = 0; i < n; ++i) acc = F::apply(acc, A(load_as(x[i * stride])));
  return acc;
}

class Reduce final : public Kernel {
 public:
  explicit Reduce(const KernelArgs& args)
      : in_(args.in.at(0)), out_(args.out.at(0)), combiner_(args.step->combiner) {
    TESSERA_CHECK(in_.sizes.size() == out_.sizes.size() && in_.dtype == out_.dtype,
                  "reduce needs two views of one dtype and the same number of dims");
    kept_.strides.resize(2);
    reduced_.strides.resize(1);
    for (size_t d = 0; d < in_.sizes.size(); ++d) {
      const int64_t size = in_.sizes[d];
      if (size == 1) continue;
      if (out_.sizes[d] == size && !(size != 0 && out_.strides[d] == 0)) {
        kept_.add_dim(size, {in_.strides[d], out_.strides[d]});
      } else {
        TESSERA_CHECK(out_.sizes[d] == 1 || out_.strides[d] == 0,
                      "reduce: dim {} is {} and becomes {}", d, size, out_.sizes[d]);
        reduced_.add_dim(size, {in_.strides[d]});
      }
    }
    kept_.order_by(0);
    kept_.merge();
    reduced_.order_by(0);
    reduced_.merge();
    auto densest = [](const Nest& nest) {
      return nest.rank() > 0 ? std::abs(nest.strides[0].back())
                             : std::numeric_limits<int64_t>::max();
    };
    by_strips_ = kept_.rank() > 0 && densest(kept_) < densest(reduced_) && kept_.sizes.back() > 1;
    if (by_strips_) {
      const uint64_t blocks = static_cast<uint64_t>(reduced_.elements() / kRows) + 1;
      const size_t levels = static_cast<size_t>(std::bit_width(blocks)) + 2;
      width_ = std::min(kReduceStrip, kept_.sizes.back());
      strips_.resize(levels * static_cast<size_t>(width_) * 8);
    }
  }

  void run() override {
    if (kept_.elements() == 0) return;
    with_element(in_.dtype, [&](auto zero) {
      using T = decltype(zero);
      switch (combiner_) {
        case Combiner::sum:
          return run_all<Sum, T>();
        case Combiner::prod:
          return run_all<Prod, T>();
        case Combiner::max:
          return run_all<Max, T>();
        case Combiner::min:
          return run_all<Min, T>();
        case Combiner::any:
        case Combiner::all:
          if constexpr (std::is_integral_v<T>) {
            return combiner_ == Combiner::any ? run_all<Any, T>() : run_all<All, T>();
          } else {
            fail(ErrorKind::unsupported, "any and all of {}", to_string(in_.dtype));
          }
      }
    });
  }

 private:
  template <class F, class T>
  void run_all() {
    if (by_strips_) return run_strips<F, T>();
    for_each<2>(kept_, kept_.rank(), [&](const auto& at) {
      const Compute<T> x = reduce_one<F>(static_cast<const T*>(in_.data) + at[0]);
      static_cast<T*>(out_.data)[at[1]] = finish<F, T>(x);
    });
  }

  /// The identity of `all` for bool is 1, not 255.
  template <class F, class T>
  T finish(Compute<T> x) const {
    if constexpr (std::is_same_v<T, uint8_t>) {
      if (in_.dtype == DType::bool_) return x != 0;
    }
    return store_as<T>(x);
  }

  /// Reduces all elements of one output.
  template <class F, class T>
  Compute<T> reduce_one(const T* x) const {
    const int rank = reduced_.rank();
    if (rank == 0) return load_as(*x);
    const int64_t n = reduced_.sizes.back(), stride = reduced_.strides[0].back();
    if (rank == 1 && n <= kRun && n > 0) {
      return stride == 1 ? reduce_block<F>(x, n) : reduce_strided<F>(x, stride, n);
    }
    Pairwise<F, Compute<T>> sum;
    for_each<1>(reduced_, rank - 1, [&](const auto& at) {
      for (int64_t i = 0; i < n; i += kRun) {
        const int64_t m = std::min(kRun, n - i);
        const T* from = x + at[0] + i * stride;
        sum.add(stride == 1 ? reduce_block<F>(from, m) : reduce_strided<F>(from, stride, m));
      }
    });
    return sum.total();
  }

  template <class F, class T>
  void run_strips() {
    const int64_t n = kept_.sizes.back(), si = kept_.strides[0].back(),
                  so = kept_.strides[1].back();
    for_each<2>(kept_, kept_.rank() - 1, [&](const auto& at) {
      for (int64_t i = 0; i < n; i += width_) {
        const T* x = static_cast<const T*>(in_.data) + at[0] + i * si;
        T* out = static_cast<T*>(out_.data) + at[1] + i * so;
        const int64_t m = std::min(width_, n - i);
        const Compute<T>* acc = reduce_strip<F>(x, si, m);
        for (int64_t j = 0; j < m; ++j) out[j * so] = finish<F, T>(acc[j]);
      }
    });
  }

  /// acc[l] op= each of some rows in turn: the innermost loop of strips.
  template <class F, class T, size_t... r>
  static void add_rows(Compute<T>* __restrict acc, const T* x, const int64_t* at, int64_t stride,
                       int64_t m, std::index_sequence<r...>) {
    const T* __restrict const row[] = {x + at[r]...};
    auto add = [&](int64_t j, int64_t step) {
      Compute<T> sum = acc[j];
      ((sum = F::apply(sum, Compute<T>(load_as(row[r][j * step])))), ...);
      acc[j] = sum;
    };
    if (stride == 1) {
      for (int64_t j = 0; j < m; ++j) add(j, 1);
    } else {
      for (int64_t j = 0; j < m; ++j) add(j, stride);
    }
  }

  template <class F, class T>
  const Compute<T>* reduce_strip(const T* x, int64_t stride, int64_t m) {
    using A = Compute<T>;
    A* level = reinterpret_cast<A*>(strips_.data());  // [levels][width_]
    uint64_t blocks = 0;
    int64_t rows = 0;
    int64_t top = 0;  // the level being filled: as many as complete blocks
    int64_t waiting[kAtOnce], count = 0;
    std::fill(level, level + m, F::template identity<A>());
    auto close_block = [&] {
      for (uint64_t c = blocks++; c & 1u; c >>= 1, --top) {
        combine<F>(level + (top - 1) * width_, level + top * width_, m);
      }
      ++top;
      std::fill(level + top * width_, level + top * width_ + m, F::template identity<A>());
      rows = 0;
    };
    for_each<1>(reduced_, reduced_.rank(), [&](const auto& at) {
      if (rows == kRows) close_block();
      waiting[count++] = at[0];
      ++rows;
      if (count < kAtOnce) return;
      add_rows<F>(level + top * width_, x, waiting, stride, m, std::make_index_sequence<kAtOnce>());
      count = 0;
    });
    for (int64_t i = 0; i < count; ++i)
      add_rows<F>(level + top * width_, x, waiting + i, stride, m, std::make_index_sequence<1>());
    for (; top > 0; --top) combine<F>(level + (top - 1) * width_, level + top * width_, m);
    return level;
  }

  template <class F, class A>
  static void combine(A* __restrict a, const A* __restrict b, int64_t m) {
    for (int64_t j = 0; j < m; ++j) a[j] = F::apply(a[j], b[j]);
  }

  TensorArg in_, out_;
  Combiner combiner_;
  Nest kept_, reduced_;  ///< operands (in, out) and (in)
  bool by_strips_ = false;
  int64_t width_ = 0;  ///< of a strip
  std::vector<unsigned char> strips_;
};

}  // namespace

Sharing share_reduce(const Step& step, int threads) {
  const View &in = step.in.at(0), &out = step.out.at(0);
  std::vector<char> kept;
  for (size_t d = 0; d < out.sizes.size(); ++d) {
    kept.push_back(out.sizes[d] == in.sizes[d] && in.strides[d] != 0);
  }
  return {outermost_dim(out, kept, threads), static_cast<double>(in.elements()) * 0.2};
}

std::unique_ptr<Kernel> bind_reduce(const KernelArgs& args) {
  if (args.step->order.is_strict()) return bind_ordered_reduce(args);
  return std::make_unique<Reduce>(args);
}

}  // namespace tessera::cpu
