// Reductions, and sums of subtrees, in the canonical order (program/sum_order.h). Chains of
// additions run side by side: those of a strip of results, or those of several leaves of one
// result.
#include <algorithm>

#include "kernels/common/nest.h"
#include "kernels/common/types.h"
#include "kernels/cpu/ordered_places.h"
#include "kernels/cpu/reduce_row.h"
#include "kernels/cpu/tables.h"
#include "kernels/cpu/transpose_four.h"
#include "program/sum_order.h"

namespace tessera::cpu {

using namespace kernels;

namespace {

constexpr int64_t kDenseStrip = 512, kStridedStrip = 16;

/// Sums of strips: a stack machine over values of type A, see joins_of().
template <class F, class A>
class Strips {
 public:
  Strips(int64_t depth, int64_t width)
      : width_(width), values_(static_cast<size_t>((depth + 1) * width)) {}
  void clear() { top_ = 0; }
  /// The strip of the next leaf.
  A* push() { return values_.data() + width_ * top_++; }
  void join(int64_t count) {
    for (; count > 0; --count, --top_) {
      A* const to = values_.data() + width_ * (top_ - 2);
      for (int64_t j = 0; j < width_; ++j) to[j] = F::apply(to[j], to[j + width_]);
    }
  }
  const A* result() const { return values_.data(); }

 private:
  int64_t width_, top_ = 0;
  std::vector<A> values_;
};

/// Calls body(F, T, out type) for a sum or product of floating type.
template <class Body>
std::unique_ptr<Kernel> with_types(Combiner combiner, DType in, Body&& body) {
  const auto with = [&](auto f) -> std::unique_ptr<Kernel> {
    if (in == DType::float64) return body(f, double{});
    if (in == DType::float32) return body(f, float{});
    return with_narrow(in, [&](auto zero) { return body(f, zero); });
  };
  return combiner == Combiner::prod ? with(Prod{}) : with(Sum{});
}

/// Calls body(Out{}) for the type of a result: that of the operand, or wider.
template <class T, class Body>
void with_result(DType dtype, Body&& body) {
  using W = Compute<T>;
  if constexpr (!std::is_same_v<T, W>) {
    if (size_of(dtype) == static_cast<int64_t>(sizeof(T))) return body(T{});
  }
  body(W{});
}

/// A complete sum has no negative zero that none of its terms had.
template <class F, class Out, class W>
Out finished(W x, bool is_complete) {
  if constexpr (std::is_same_v<F, Sum>) {
    if (is_complete) x += W(0);
  }
  if constexpr (std::is_same_v<Out, W>)
    return x;
  else
    return store_as<Out>(x);
}

template <class F, class T>
class OrderedReduce final : public Kernel {
  using W = Compute<T>;

 public:
  explicit OrderedReduce(const KernelArgs& args)
      : args_(args), places_(ordered_places(args, {args.in[0].strides})) {
    kept_.strides.resize(2);
    const auto& along = args.step->order.along;
    for (size_t d = 0; d < args.in[0].sizes.size(); ++d) {
      const bool is_summed = std::any_of(along.begin(), along.end(), [&](const auto& a) {
        return a.dim == static_cast<int64_t>(d);
      });
      if (!is_summed && args.in[0].sizes[d] != 1)
        kept_.add_dim(args.in[0].sizes[d], {args.in[0].strides[d], args.out[0].strides[d]});
    }
    kept_.order_by(0);
    kept_.merge();
    if (kept_.rank() == 0) kept_.add_dim(1, {0, 0});
    const bool dense = kept_.strides[0].back() == 1;
    width_ = std::min(dense ? kDenseStrip : kStridedStrip, kept_.sizes.back());
    strips_ = std::make_unique<Strips<F, W>>(places_.depth, std::max<int64_t>(1, width_));
    lines_.resize(static_cast<size_t>(width_));
    for (const OrderedPlace& place : places_.places) blocks_.push_back(blocks_of(place));
    TESSERA_CHECK(places_.depth <= kDeepest, "{} open subtrees", places_.depth);
  }

  void run() override {
    for (int64_t p = 0; p < args_.step->order.places; ++p) {
      const OrderedPlace* place =
          p < std::ssize(places_.places) ? &places_.places[static_cast<size_t>(p)] : nullptr;
      with_result<T>(args_.out[0].dtype, [&](auto zero) {
        using Out = decltype(zero);
        reduce(place, static_cast<Out*>(args_.out[0].data) + p * args_.step->order.stride);
      });
    }
  }

 private:
  template <class Out>
  void reduce(const OrderedPlace* place, Out* out) {
    const int64_t n = kept_.sizes.back(), si = kept_.strides[0].back(),
                  so = kept_.strides[1].back();
    const bool is_complete = !args_.step->order.is_split();
    for_each<2>(kept_, kept_.rank() - 1, [&](const auto& at) {
      for (int64_t i = 0; i < n; i += width_) {
        const int64_t m = std::min(width_, n - i);
        const W* sums =
            place == nullptr
                ? nullptr
                : strip(*place, static_cast<const T*>(args_.in[0].data) + at[0] + i * si, si, m);
        Out* to = out + at[1] + i * so;
        for (int64_t j = 0; j < m; ++j)
          to[j * so] = finished<F, Out>(sums ? sums[j] : nothing(), is_complete);
      }
    });
  }

  static W nothing() { return std::is_same_v<F, Sum> ? W(kNoTerms) : W(1); }

  const W* strip(const OrderedPlace& place, const T* x, int64_t stride, int64_t m) {
    const int64_t step = places_.strides[0];
    if (m == 1 || (step == 1 && stride != 1)) {
      const std::vector<Block>& blocks =
          blocks_[static_cast<size_t>(&place - places_.places.data())];
      for (int64_t j = 0; j < m; ++j)
        lines_[static_cast<size_t>(j)] = line(place, blocks, x + j * stride);
      return lines_.data();
    }
    strips_->clear();
    size_t run = 0;
    for (size_t leaf = 0; leaf < place.ends.size(); ++leaf) {
      W* acc = strips_->push();
      std::fill(acc, acc + width_, nothing());
      for (; run < static_cast<size_t>(place.ends[leaf]); ++run) {
        const T* from = x + place.runs[run].at[0];
        for (int64_t i = 0; i < place.runs[run].count; ++i, from += step) {
          if (stride == 1) {
            for (int64_t j = 0; j < m; ++j) acc[j] = F::apply(acc[j], W(load_as(from[j])));
          } else {
            for (int64_t j = 0; j < m; ++j) acc[j] = F::apply(acc[j], W(load_as(from[j * stride])));
          }
        }
      }
      strips_->join(place.joins[leaf]);
    }
    return strips_->result();
  }

  static constexpr size_t kSide = 8;  ///< leaves that are summed side by side

  /// Leaves whose runs begin at `run`, each with so many: kSide that are alike, or one.
  struct Block {
    size_t leaves, run, runs;
    bool pairs = false;  ///< leaf l has terms 2 l and 2 l + 1 of those of a run
  };

  static std::vector<Block> blocks_of(const OrderedPlace& place) {
    std::vector<Block> blocks;
    size_t run = 0;
    for (size_t leaf = 0; leaf < place.ends.size(); leaf += blocks.back().leaves) {
      const auto runs_of = [&](size_t l) {
        return static_cast<size_t>(place.ends[l] - (l == 0 ? 0 : place.ends[l - 1]));
      };
      const size_t runs = runs_of(leaf);
      bool alike = leaf + kSide <= place.ends.size();
      for (size_t l = 1; alike && l < kSide; ++l) alike = runs_of(leaf + l) == runs;
      for (size_t r = 1; alike && r < kSide * runs; ++r)
        alike = place.runs[run + r].count == place.runs[run].count;
      bool pairs = alike;
      for (size_t r = 0; pairs && r < kSide * runs; ++r) {
        const int64_t at = place.runs[run + r % runs].at[0] + 2 * static_cast<int64_t>(r / runs);
        pairs = place.runs[run + r].count == 2 && place.runs[run + r].at[0] == at;
      }
      blocks.push_back({alike ? kSide : 1, run, runs, pairs});
      run += blocks.back().leaves * runs;
    }
    return blocks;
  }

  /// Adds terms that are one behind the other, as many as are whole vectors. Returns their number.
  static int64_t add_side_by_side(const float* const* from, int64_t count, float* acc) {
    int64_t i = 0;
    for (size_t l = 0; l < kSide; l += 4) {
      FourFloats sum, terms[4];
      std::memcpy(&sum, acc + l, sizeof(sum));
      for (i = 0; i + 4 <= count; i += 4) {
        const float* lines[4] = {from[l] + i, from[l + 1] + i, from[l + 2] + i, from[l + 3] + i};
        transpose_four(lines, terms);
        for (const FourFloats& term : terms) sum += term;
      }
      std::memcpy(acc + l, &sum, sizeof(sum));
    }
    return i;
  }

  /// Adds two terms of each leaf, all one behind the other.
  static void add_pairs(const float* from, float* acc) {
    for (size_t l = 0; l < kSide; l += 4) {
      FourFloats sum, pairs[2];
      std::memcpy(&sum, acc + l, sizeof(sum));
      std::memcpy(&pairs, from + 2 * l, sizeof(pairs));
      sum += __builtin_shufflevector(pairs[0], pairs[1], 0, 2, 4, 6);
      sum += __builtin_shufflevector(pairs[0], pairs[1], 1, 3, 5, 7);
      std::memcpy(acc + l, &sum, sizeof(sum));
    }
  }

  /// One sum.
  W line(const OrderedPlace& place, const std::vector<Block>& blocks, const T* x) const {
    W open[kDeepest], *top = open;
    open[0] = nothing();
    const int64_t step = places_.strides[0];
    size_t leaf = 0;
    for (const Block& block : blocks) {
      W acc[kSide];
      std::fill_n(acc, kSide, nothing());
      for (size_t run = block.run; run < block.run + block.runs; ++run) {
        const int64_t count = place.runs[run].count;
        if (block.leaves == 1) {
          const T* from = x + place.runs[run].at[0];
          for (int64_t i = 0; i < count; ++i) acc[0] = F::apply(acc[0], W(load_as(from[i * step])));
          continue;
        }
        if constexpr (std::is_same_v<F, Sum> && std::is_same_v<T, float>) {
          if (block.pairs && step == 1) {
            add_pairs(x + place.runs[run].at[0], acc);
            continue;
          }
        }
        const T* from[kSide];
        for (size_t l = 0; l < kSide; ++l) from[l] = x + place.runs[run + l * block.runs].at[0];
        int64_t i = 0;
        if constexpr (std::is_same_v<F, Sum> && std::is_same_v<T, float>) {
          if (step == 1) i = add_side_by_side(from, count, acc);
        }
        for (; i < count; ++i) {
#pragma GCC unroll 8
          for (size_t l = 0; l < kSide; ++l)
            acc[l] = F::apply(acc[l], W(load_as(from[l][i * step])));
        }
      }
      for (size_t l = 0; l < block.leaves; ++l, ++leaf) {
        *top++ = acc[l];
        for (int64_t join = place.joins[leaf]; join > 0; --join, --top)
          top[-2] = F::apply(top[-2], top[-1]);
      }
    }
    return open[0];
  }

  KernelArgs args_;
  OrderedPlaces places_;
  Nest kept_;  ///< operands in, out
  int64_t width_ = 1;
  std::unique_ptr<Strips<F, W>> strips_;
  std::vector<W> lines_;
  std::vector<std::vector<Block>> blocks_;  ///< of each place
};

/// The sum of subtrees: of in[0] [place, ...], in the order that the spec says.
template <class F, class T>
class TreeSum final : public Kernel {
 public:
  explicit TreeSum(const KernelArgs& args) : args_(args), spec_(args.step->as<TreeSumSpec>()) {
    std::vector<int64_t> rest(args.in[0].strides.begin() + 1, args.in[0].strides.end());
    nest_ = make_nest(args.out[0].sizes, {rest, args.out[0].strides});
    nest_.drop_ones();
    nest_.merge();
    if (nest_.rank() == 0) nest_.add_dim(1, {0, 0});
    width_ = std::max<int64_t>(1, std::min(kDenseStrip, nest_.sizes.back()));
    strips_ = std::make_unique<Strips<F, T>>(depth_of(spec_.joins), width_);
  }

  void run() override {
    if constexpr (std::is_same_v<T, float>) {
      if (const DType dtype = args_.out[0].dtype; is_narrow(dtype))
        return with_narrow(
            dtype, [&](auto zero) { add(static_cast<decltype(zero)*>(args_.out[0].data)); });
    }
    add(static_cast<T*>(args_.out[0].data));
  }

 private:
  template <class Out>
  void add(Out* out) {
    const int64_t n = nest_.sizes.back(), si = nest_.strides[0].back(),
                  so = nest_.strides[1].back();
    for_each<2>(nest_, nest_.rank() - 1, [&](const auto& at) {
      for (int64_t i = 0; i < n; i += width_) {
        const int64_t m = std::min(width_, n - i);
        strips_->clear();
        for (size_t p = 0; p < spec_.places.size(); ++p) {
          const T* from = static_cast<const T*>(args_.in[0].data) + at[0] + i * si +
                          spec_.places[p] * args_.in[0].strides[0];
          T* strip = strips_->push();
          for (int64_t j = 0; j < m; ++j) strip[j] = from[j * si];
          strips_->join(spec_.joins[p]);
        }
        const T* sums = strips_->result();
        for (int64_t j = 0; j < m; ++j) out[at[1] + (i + j) * so] = finished<F, Out>(sums[j], true);
      }
    });
  }

  KernelArgs args_;
  TreeSumSpec spec_;
  Nest nest_;  ///< operands in, out
  int64_t width_ = 1;
  std::unique_ptr<Strips<F, T>> strips_;
};

}  // namespace

std::unique_ptr<Kernel> bind_ordered_reduce(const KernelArgs& args) {
  return with_types(args.step->combiner, args.in[0].dtype, [&](auto f, auto zero) {
    return std::unique_ptr<Kernel>(
        std::make_unique<OrderedReduce<decltype(f), decltype(zero)>>(args));
  });
}

std::unique_ptr<Kernel> bind_tree_sum(const KernelArgs& args) {
  const bool is_product = args.step->combiner == Combiner::prod;
  if (args.in[0].dtype == DType::float64) {
    if (is_product) return std::make_unique<TreeSum<Prod, double>>(args);
    return std::make_unique<TreeSum<Sum, double>>(args);
  }
  TESSERA_CHECK(args.in[0].dtype == DType::float32, "tree_sum of {}", to_string(args.in[0].dtype));
  if (is_product) return std::make_unique<TreeSum<Prod, float>>(args);
  return std::make_unique<TreeSum<Sum, float>>(args);
}

Sharing share_tree_sum(const Step& step, int) {
  return {-1, static_cast<double>(step.in.at(0).elements()) * 0.2};
}

}  // namespace tessera::cpu
