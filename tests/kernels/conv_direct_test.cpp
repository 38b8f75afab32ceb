// The library's convolutions equal our own kernel to the last bit, places that neither writes
// included: numbers are small integers, so that every sum is exact, and our own kernel computes
// them in float64, which the library never gets. Factors, orders of memory, windows and the slices
// of a rank are drawn at random.
#include "kernels/cpu/conv_direct.h"

#include "base/bfloat16.h"
#include "kernels/cpu/blas.h"
#include "kernels/drawn_convs.h"
#include "support/catch.h"

namespace tessera::test {

namespace TESSERA_FILE {

Step drawn_step(Draw& draw) {
  std::vector<Kind> kinds;
  Numbers sizes;
  const bool depthwise = draw.one_in(5);
  for (int64_t f = draw(2, 5); f > 0; --f) {
    kinds.push_back(static_cast<Kind>(draw(kGroup, depthwise ? kImages : kOutputs)));
    sizes.push_back(draw.one_in(3) ? draw(8, 18) : draw(1, 3));
  }
  DrawnConv conv(kinds, sizes);
  const int64_t dims = draw(1, 3);
  for (int64_t s = 0; s < dims; ++s) {
    const int64_t window = draw(1, 4), stride = draw(1, 3), dilation = draw(1, 2);
    const int64_t span = dilation * (window - 1) + 1;
    const int64_t x = draw(1, 9);
    int64_t lo = draw(0, span / 2);
    int64_t y = (std::max(x + lo + draw(0, span / 2), span) - span) / stride + 1;
    if (draw.one_in(6)) lo = draw(-2, 5), y = draw(1, 9);  // windows beside x, places not seen
    conv.add({x, y, window, stride, dilation, lo}, false, draw);
  }
  return conv.step(draw);
}

/// Of so many random steps, those that the library takes; CHECKs that they equal our own kernel.
template <class T>
int taken_of(int steps, DType dtype, unsigned seed) {
  Draw draw(seed);
  int taken = 0;
  const KernelEntry* entry = find_cpu_kernel(KernelKind::conv);
  for (int i = 0; i < steps; ++i) {
    const Step step = with_dtype(drawn_step(draw), dtype);
    const DirectPlan plan(step);
    const std::vector<T> got = run_as<T>(
        step, dtype, plan.total(), [&](const KernelArgs& a) { return bind_direct_conv(a, plan); });
    if (got.empty()) continue;
    ++taken;
    const Step wide = with_dtype(step, DType::float64);
    const std::vector<double> want =
        run_as<double>(step, DType::float64, entry->workspace_bytes(wide), entry->bind);
    INFO("step " << i << ", result " << step.as<ConvSpec>().result);
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

}  // namespace TESSERA_FILE
}  // namespace tessera::test
