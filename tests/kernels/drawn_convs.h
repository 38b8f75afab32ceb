// Random views of convolutions, and what a kernel makes of a step in them: for tests that compare
// kernels with each other.
#pragma once

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>

#include "base/bfloat16.h"
#include "kernels/common/conv_views.h"
#include "kernels/common/kernel.h"
#include "kernels/common/types.h"
#include "support/catch.h"

namespace tessera::test {

using namespace cpu;
using namespace kernels;
using Numbers = std::vector<int64_t>;

class Draw {
 public:
  explicit Draw(unsigned seed) : engine_(seed) {}
  int64_t operator()(int64_t lo, int64_t hi) {
    return std::uniform_int_distribution<int64_t>(lo, hi)(engine_);
  }
  bool one_in(int64_t n) { return (*this)(1, n) == 1; }
  template <class T>
  void shuffle(std::vector<T>& list) {
    std::shuffle(list.begin(), list.end(), engine_);
  }

 private:
  std::mt19937 engine_;
};

/// Memory orders: channels last, or any; now and then with gaps.
inline View drawn_view(const Numbers& sizes, const std::vector<Kind>& kinds, Draw& draw) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (draw.one_in(3)) {
    draw.shuffle(order);
  } else {
    const auto rank = [&](size_t d) {
      return d >= kinds.size() ? 1 : kinds[d] == kImages ? 0 : kinds[d] == kGroup ? 2 : 3;
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return rank(a) < rank(b); });
  }
  View view;
  view.sizes = sizes;
  view.strides.resize(sizes.size());
  const size_t gap = draw.one_in(8) ? static_cast<size_t>(draw(0, 5)) : sizes.size();
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    view.strides[order[i]] = stride;
    stride *= sizes[order[i]] + (order[i] == gap ? 1 : 0);
  }
  return view;
}

/// A step of convolution whose spatial dims are added one by one.
class DrawnConv {
 public:
  DrawnConv(const std::vector<Kind>& kinds, const Numbers& sizes) : kinds_(kinds) {
    const Kind missing[3] = {kOutputs, kImages, kInputs};  // in x, filter, y
    for (int side = 0; side < 3; ++side) {
      for (size_t f = 0; f < kinds.size(); ++f)
        of_[side].push_back(kinds[f] == missing[side] ? 1 : sizes[f]);
    }
  }

  struct SpatialDim {
    int64_t x, y, window, stride, dilation, lo;
  };
  /// Now and then it has the slices of a rank, with what lies beyond the tensor; `by_rank`: where
  /// they begin depends on the rank.
  void add(const SpatialDim& d, bool by_rank, Draw& draw) {
    const bool split = draw.one_in(4);
    const int64_t drawn[kNumbers] = {d.x, d.y, d.window, d.stride, d.dilation, d.lo};
    for (int i = 0; i < kNumbers; ++i) numbers_[i].push_back(drawn[i]);
    const int64_t begin[3] = {split ? draw(-2, 2) : 0, split ? draw(-1, 2) : 0,
                              split ? draw(0, 1) : 0};
    for (int64_t b : begin) {
      AffineExpr e;
      e.constant = b;
      if (split && by_rank) e.axis_terms = {{0, 1}};
      step_.exprs.push_back(e);
    }
    of_[0].push_back(d.x + (split ? draw(0, 2) : 0));
    of_[1].push_back(d.window);
    of_[2].push_back(d.y);
  }

  /// With a result and memory orders that are drawn.
  Step step(Draw& draw) const {
    const auto result = static_cast<conv_kinds::Result>(draw(kOfY, kOfFilter));
    const View x = drawn_view(of_[0], kinds_, draw), filter = drawn_view(of_[1], kinds_, draw),
               y = drawn_view(of_[2], kinds_, draw);
    Step step = step_;
    step.kernel = KernelKind::conv;
    step.in = {result == kOfX ? y : x, result == kOfFilter ? y : filter};
    step.out = {result == kOfY ? y : result == kOfX ? x : filter};
    step.spec = ConvSpec{result,      kinds_,      numbers_[0], numbers_[1],
                         numbers_[2], numbers_[3], numbers_[4], numbers_[5]};
    return step;
  }

 private:
  static constexpr int kNumbers = 6;
  std::vector<Kind> kinds_;
  Numbers of_[3], numbers_[kNumbers];
  Step step_;
};

inline Step with_dtype(Step step, DType dtype) {
  for (View* view : {&step.in[0], &step.in[1], &step.out[0]}) view->dtype = dtype;
  return step;
}

/// A small integer, as if drawn.
inline float value(int64_t i, int64_t salt) {
  uint64_t x = static_cast<uint64_t>(i * 8 + salt) * 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
  return static_cast<float>(static_cast<int64_t>((x >> 33) % 5) - 2);
}

template <class T>
T stored(float x) {
  if constexpr (std::is_same_v<T, BFloat16>)
    return narrowed(x, T{});
  else
    return static_cast<T>(x);
}

inline constexpr int kOrigin[1] = {0};  // of a rank of a mesh with one axis
inline constexpr float kUntouched = 77;
inline constexpr size_t kBeyond = 4096;  // elements behind every operand, that stay as they are

/// What `bind` makes of the step: all of the result's memory, or nothing where it declines.
/// `change` may rewrite the first operand's elements before.
template <class T, class Bind>
std::vector<T> run_as(Step step, DType dtype, int64_t workspace_bytes, Bind bind,
                      const std::function<void(std::vector<T>&)>& change = nullptr) {
  std::vector<std::vector<T>> memory;
  KernelArgs args;
  const auto add = [&](View& view, bool result) {
    view.dtype = dtype;
    std::vector<T> elements;
    for (int64_t i = 0; i < reach(view); ++i)
      elements.push_back(
          stored<T>(result ? kUntouched : value(i, 3 + static_cast<int64_t>(memory.size()))));
    if (memory.empty() && change) change(elements);
    elements.resize(elements.size() + kBeyond, stored<T>(kUntouched));
    memory.push_back(std::move(elements));
    (result ? args.out : args.in)
        .push_back({memory.back().data(), dtype, view.sizes, view.strides});
  };
  add(step.in[0], false), add(step.in[1], false), add(step.out[0], true);
  constexpr size_t kGuard = 64;
  const size_t bytes = static_cast<size_t>(workspace_bytes);
  std::vector<unsigned char> workspace(bytes + 2 * kGuard, 0xa5);
  const size_t skip = kGuard - reinterpret_cast<uintptr_t>(workspace.data()) % kGuard;
  args.step = &step;
  args.coordinates = kOrigin;
  args.workspace = workspace.data() + skip;
  const std::unique_ptr<Kernel> kernel = bind(args);
  if (kernel == nullptr) return {};
  std::fill(workspace.begin() + static_cast<int64_t>(skip),
            workspace.begin() + static_cast<int64_t>(skip + bytes), 0xff);  // NaN
  kernel->run();
  kernel->run();
  CHECK(std::all_of(workspace.begin() + static_cast<int64_t>(skip + bytes), workspace.end(),
                    [](unsigned char c) { return c == 0xa5; }));
  for (std::vector<T>& elements : memory) {
    CHECK(std::all_of(elements.end() - kBeyond, elements.end(),
                      [](T x) { return load_as(x) == kUntouched; }));
    elements.resize(elements.size() - kBeyond);
  }
  return memory.back();
}

}  // namespace tessera::test
