// The library's convolutions equal our own kernel to the last bit, places that neither writes
// included: numbers are small integers, so that every sum is exact, and our own kernel computes
// them in float64, which the library never gets. Factors, orders of memory, windows and the slices
// of a rank are drawn at random.
#include "kernels/cpu/conv_direct.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "catch.h"
#include "kernels/bfloat16.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/types.h"
#include "runtime/program.h"

namespace tessera::test {

namespace {

using namespace cpu;
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
View drawn_view(const Numbers& sizes, const Numbers& kinds, Draw& draw) {
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

Step drawn_step(Draw& draw) {
  Numbers kinds, sizes;
  const bool depthwise = draw.one_in(5);
  for (int64_t f = draw(2, 5); f > 0; --f) {
    kinds.push_back(depthwise ? draw(kGroup, kImages) : draw(kGroup, kOutputs));
    sizes.push_back(draw.one_in(3) ? draw(8, 18) : draw(1, 3));
  }
  const Kind missing[3] = {kOutputs, kImages, kInputs};  // in x, filter, y
  Numbers of[3];
  for (int side = 0; side < 3; ++side) {
    for (size_t f = 0; f < kinds.size(); ++f)
      of[side].push_back(kinds[f] == missing[side] ? 1 : sizes[f]);
  }
  Step step;
  step.kernel = "conv";
  const int64_t dims = draw(1, 3);
  const char* names[6] = {"in_sizes", "out_sizes", "window_sizes", "strides", "dilations", "los"};
  Numbers numbers[6];
  for (int64_t s = 0; s < dims; ++s) {
    const int64_t window = draw(1, 4), stride = draw(1, 3), dilation = draw(1, 2);
    const int64_t span = dilation * (window - 1) + 1;
    const int64_t x = draw(1, 9);
    int64_t lo = draw(0, span / 2);
    int64_t y = (std::max(x + lo + draw(0, span / 2), span) - span) / stride + 1;
    if (draw.one_in(6)) lo = draw(-2, 5), y = draw(1, 9);  // windows beside x, places not seen
    const bool split = draw.one_in(4);  // the slices of a rank, with what lies beyond the tensor
    const int64_t drawn[6] = {x, y, window, stride, dilation, lo};
    for (int i = 0; i < 6; ++i) numbers[i].push_back(drawn[i]);
    const int64_t begin[3] = {split ? draw(-2, 2) : 0, split ? draw(-1, 2) : 0,
                              split ? draw(0, 1) : 0};
    for (int64_t b : begin) {
      IntExpr e;
      e.constant = b;
      step.exprs.push_back(e);
    }
    of[0].push_back(x + (split ? draw(0, 2) : 0));
    of[1].push_back(window);
    of[2].push_back(y);
  }
  const int64_t result = draw(kOfY, kOfFilter);
  const View x = drawn_view(of[0], kinds, draw), filter = drawn_view(of[1], kinds, draw),
             y = drawn_view(of[2], kinds, draw);
  step.in = {result == kOfX ? y : x, result == kOfFilter ? y : filter};
  step.out = {result == kOfY ? y : result == kOfX ? x : filter};
  step.attrs = {{"result", result}, {"kinds", kinds}};
  for (int i = 0; i < 6; ++i) step.attrs.set(names[i], numbers[i]);
  return step;
}

float value(int64_t i, int64_t salt) { return static_cast<float>((i * i * 7 + i * salt) % 5 - 2); }

template <class T>
T stored(float x) {
  if constexpr (std::is_same_v<T, BFloat16>)
    return narrowed(x, T{});
  else
    return static_cast<T>(x);
}

constexpr float kUntouched = 77;
constexpr size_t kBeyond = 4096;  // elements behind every operand, that stay as they are

/// What `bind` makes of the step: all of the result's memory, or nothing where it declines.
template <class T, class Bind>
std::vector<T> run_as(Step step, DType dtype, int64_t workspace_bytes, Bind bind) {
  std::vector<std::vector<T>> memory;
  KernelArgs args;
  const auto add = [&](View& view, bool result) {
    view.dtype = dtype;
    std::vector<T> elements;
    for (int64_t i = 0; i < reach(view); ++i)
      elements.push_back(
          stored<T>(result ? kUntouched : value(i, 3 + static_cast<int64_t>(memory.size()))));
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

/// Of so many random steps, those that the library takes; CHECKs that they equal our own kernel.
template <class T>
int taken_of(int steps, DType dtype, unsigned seed) {
  Draw draw(seed);
  int taken = 0;
  const KernelEntry* entry = find_cpu_kernel("conv");
  for (int i = 0; i < steps; ++i) {
    Step step = drawn_step(draw);
    for (View* view : {&step.in[0], &step.in[1], &step.out[0]}) view->dtype = dtype;
    const DirectPlan plan(step);
    const std::vector<T> got = run_as<T>(
        step, dtype, plan.total(), [&](const KernelArgs& a) { return bind_direct_conv(a, plan); });
    if (got.empty()) continue;
    ++taken;
    Step wide = step;
    for (View* view : {&wide.in[0], &wide.in[1], &wide.out[0]}) view->dtype = DType::float64;
    const std::vector<double> want =
        run_as<double>(step, DType::float64, entry->workspace_bytes(wide), entry->bind);
    INFO("step " << i << ", result " << step.attrs.get<int64_t>("result"));
    REQUIRE(got.size() == want.size());
    for (size_t e = 0; e < got.size(); ++e) {
      INFO("element " << e);
      if constexpr (std::is_same_v<T, float>)
        REQUIRE(got[e] == static_cast<float>(want[e]));
      else
        REQUIRE(to_float(got[e]) == to_float(narrowed(static_cast<float>(want[e]), T{})));
    }
  }
  return taken;
}

bool has_library() { return blas_description().find("oneDNN") != std::string::npos; }

}  // namespace

TEST_CASE("the library's convolutions of float32 are our own kernel's", "[conv]") {
  const int taken = taken_of<float>(1500, DType::float32, 1);
#ifdef __x86_64__
  if (has_library()) CHECK(taken > 200);
#endif
}

TEST_CASE("the library's convolutions of bfloat16 are our own kernel's", "[conv]") {
  const int taken = taken_of<BFloat16>(1500, DType::bfloat16, 2);
  if (BfloatGemm::is_fast()) CHECK(taken > 200);
}

}  // namespace tessera::test
