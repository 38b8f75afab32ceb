// Convolutions through the Fourier domain equal our own kernel in float64 but for rounding, and
// write the same places, on every instruction set that this processor has; and no image sees what
// another one holds. Factors, orders of memory, windows, the slices of a rank and the lengths of
// transforms are drawn at random.
#include "kernels/cpu/conv_fourier.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "catch.h"
#include "drawn_convs.h"

namespace tessera::test {

namespace {

Step drawn_step(Draw& draw) {
  Numbers kinds, sizes;
  int64_t all = 1;
  for (int64_t f = draw(2, 5); f > 0; --f) {
    kinds.push_back(draw.one_in(4) ? draw(kGroup, kImages) : draw(kImages, kOutputs));
    const bool is_large = all < 40 && draw.one_in(3) && kinds.back() != kGroup;
    sizes.push_back(is_large ? draw(7, 40) : draw(1, 4));
    all *= sizes.back();
  }
  DrawnConv conv(kinds, sizes);
  for (int64_t s = draw(1, 2); s > 0; --s) {
    const int64_t window = draw(1, 11), x = draw(1, draw.one_in(4) ? 40 : 14);
    int64_t lo = draw(0, window - 1);
    int64_t y = std::max<int64_t>(1, x + lo + draw(0, window - 1) - window + 1);
    if (draw.one_in(6)) lo = draw(-2, 5), y = draw(1, 14);  // windows beside x, places not seen
    conv.add({x, y, window, 1, 1, lo}, true, draw);
  }
  return conv.step(draw);
}

/// What our own kernel makes of the step.
std::vector<double> wanted(const Step& step) {
  const KernelEntry* entry = find_cpu_kernel("conv");
  const Step wide = with_dtype(step, DType::float64);
  return run_as<double>(step, DType::float64, entry->workspace_bytes(wide), entry->bind);
}

void check_close(const std::vector<float>& got, const std::vector<double>& want) {
  REQUIRE(got.size() == want.size());
  double off = 0, all = 0, most = 0, most_off = 0;
  for (size_t e = 0; e < got.size(); ++e) {
    const double d = got[e] - want[e];
    if (want[e] == kUntouched) {
      most_off = std::max(most_off, std::abs(d));
      continue;
    }
    off += d * d, all += want[e] * want[e];
    most = std::max(most, std::abs(want[e])), most_off = std::max(most_off, std::abs(d));
  }
  // Sums of few small integers may cancel to nothing.
  CHECK(std::sqrt(off) <=
        2e-6 * std::max(std::sqrt(all), std::sqrt(static_cast<double>(got.size()))));
  CHECK(most_off <= 1e-5 * std::max(most, 10.0));
}

TEST_CASE("convolutions through the Fourier domain are our own kernel's", "[conv]") {
  Draw draw(1);
  int taken = 0, tiled = 0;
  const auto all_ops = usable_fourier_ops();
  for (int i = 0; i < 1200; ++i) {
    const Step step = with_dtype(drawn_step(draw), DType::float32);
    const FourierPlan plan(step, true);
    const FourierOps& ops = *all_ops[static_cast<size_t>(i) % all_ops.size()];
    const std::vector<float> got =
        run_as<float>(step, DType::float32, plan.total(),
                      [&](const KernelArgs& a) { return bind_fourier_conv(a, plan, ops); });
    if (got.empty()) continue;
    ++taken;
    for (const FourierDim& d : plan.dims) tiled += d.tile < d.size ? 1 : 0;
    INFO("step " << i << ", result " << step.attrs.get<int64_t>("result"));
    check_close(got, wanted(step));
  }
  CHECK(taken > 600);
  CHECK(tiled > 100);
}

using Images = std::vector<std::vector<size_t>>;

/// The places in memory of every image's elements, in one order.
Images places_of(const View& view, const Numbers& kinds) {
  Images images;
  for (int64_t e = 0; e < view.elements(); ++e) {
    int64_t rest = e, at = 0, image = 0, step = 1;
    for (size_t d = view.sizes.size(); d-- > 0; rest /= view.sizes[d]) {
      const int64_t i = rest % view.sizes[d];
      at += i * view.strides[d];
      if (d < kinds.size() && kinds[d] == kImages) image += i * step, step *= view.sizes[d];
    }
    images.resize(std::max(images.size(), static_cast<size_t>(image) + 1));
    images[static_cast<size_t>(image)].push_back(static_cast<size_t>(at));
  }
  return images;
}

/// Bits of an image.
std::vector<uint32_t> bits(const std::vector<float>& memory, const std::vector<size_t>& places) {
  std::vector<uint32_t> all;
  for (size_t at : places) {
    all.emplace_back();
    std::memcpy(&all.back(), &memory[at], sizeof(float));
  }
  return all;
}

TEST_CASE("an image's convolution depends on that image alone", "[conv]") {
  Draw draw(2);
  int taken = 0;
  const auto all_ops = usable_fourier_ops();
  const float spoilt[] = {1e30f, -3e38f, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()};
  for (int i = 0; i < 900; ++i) {
    const Step step = with_dtype(drawn_step(draw), DType::float32);
    const Numbers kinds = step.attrs.get<Numbers>("kinds");
    const int64_t result = step.attrs.get<int64_t>("result");
    const Images from = places_of(step.in[0], kinds), to = places_of(step.out[0], kinds);
    if (result == kOfFilter || from.size() == 1) continue;
    const FourierPlan plan(step, true);
    const FourierOps& ops = *all_ops[static_cast<size_t>(i) % all_ops.size()];
    const auto run_with = [&](const std::function<void(std::vector<float>&)>& change) {
      const auto bind = [&](const KernelArgs& a) { return bind_fourier_conv(a, plan, ops); };
      return run_as<float>(step, DType::float32, plan.total(), bind, change);
    };
    const std::vector<float> alone = run_with(nullptr);
    if (alone.empty()) continue;
    ++taken;
    INFO("step " << i << ", result " << result << ", " << from.size() << " images");
    // Some images hold anything.
    std::vector<char> is_spoilt;
    for (size_t image = 0; image < from.size(); ++image) is_spoilt.push_back(draw.one_in(2));
    const std::vector<float> spoilt_some = run_with([&](std::vector<float>& memory) {
      for (size_t image = 0; image < from.size(); ++image) {
        if (is_spoilt[image] == 0) continue;
        for (size_t at : from[image]) memory[at] = spoilt[(at + image) % std::size(spoilt)];
      }
    });
    // All images stand elsewhere.
    const size_t turn = static_cast<size_t>(draw(1, static_cast<int64_t>(from.size()) - 1));
    const std::vector<float> turned = run_with([&](std::vector<float>& memory) {
      const std::vector<float> was = memory;
      for (size_t image = 0; image < from.size(); ++image) {
        const std::vector<size_t>& source = from[(image + turn) % from.size()];
        for (size_t e = 0; e < source.size(); ++e) memory[from[image][e]] = was[source[e]];
      }
    });
    bool are_alone = true, are_turned = true;
    for (size_t image = 0; image < to.size(); ++image) {
      const std::vector<uint32_t> want = bits(alone, to[image]);
      if (is_spoilt[image] == 0) are_alone = are_alone && bits(spoilt_some, to[image]) == want;
      const size_t now = (image + to.size() - turn) % to.size();
      are_turned = are_turned && bits(turned, to[now]) == want;
    }
    CHECK(are_alone);
    CHECK(are_turned);
  }
  CHECK(taken > 150);
}

/// Images of 24 x 24 with 16 channels and as many results.
Step square_step(int64_t result, int64_t window) {
  const Numbers sizes[3] = {{6, 16, 1, 24, 24}, {1, 16, 16, window, window}, {6, 1, 16, 24, 24}};
  const size_t orders[3][5] = {{0, 3, 4, 1, 2}, {3, 4, 0, 1, 2}, {0, 3, 4, 1, 2}};
  View views[3];
  for (int v = 0; v < 3; ++v) {
    views[v].sizes = sizes[v];
    views[v].strides.resize(5);
    int64_t stride = 1;
    for (size_t i = 5; i-- > 0; stride *= sizes[v][orders[v][i]])
      views[v].strides[orders[v][i]] = stride;
  }
  Step step;
  step.kernel = "conv";
  step.exprs.resize(6);
  step.in = {views[result == kOfX ? 2 : 0], views[result == kOfFilter ? 2 : 1]};
  step.out = {views[result == kOfY ? 2 : result == kOfX ? 0 : 1]};
  step.attrs = {{"result", result}, {"kinds", Numbers{kImages, kInputs, kOutputs}}};
  for (const char* sides : {"in_sizes", "out_sizes"}) step.attrs.set(sides, Numbers{24, 24});
  step.attrs.set("window_sizes", Numbers{window, window});
  for (const char* ones : {"strides", "dilations"}) step.attrs.set(ones, Numbers{1, 1});
  step.attrs.set("los", Numbers{window / 2, window / 2});
  return step;
}

TEST_CASE("large filters are convolved through the Fourier domain, small ones are not", "[conv]") {
  const KernelEntry* entry = find_cpu_kernel("conv");
  for (int64_t result : {kOfY, kOfX, kOfFilter}) {
    INFO("result " << result);
    CHECK_FALSE(FourierPlan(with_dtype(square_step(result, 3), DType::float32)).applies);
    const Step step = with_dtype(square_step(result, 9), DType::float32);
    CHECK(FourierPlan(step).applies);
    CHECK(entry->workspace_bytes(step) >= FourierPlan(step).total());
    const std::vector<float> got =
        run_as<float>(step, DType::float32, entry->workspace_bytes(step), entry->bind);
    check_close(got, wanted(step));
    // Direct sums of integers would be integers.
    CHECK(std::any_of(got.begin(), got.end(), [](float x) { return x != std::round(x); }));
  }
}

TEST_CASE("a filter longer than every transform stays direct", "[conv]") {
  Step step = with_dtype(square_step(kOfY, 9), DType::float32);
  step.in[1].sizes[3] = 300;
  step.attrs.set("window_sizes", Numbers{300, 9});
  step.attrs.set("los", Numbers{20, 4});
  CHECK_FALSE(FourierPlan(step, true).applies);
}

TEST_CASE("a convolution of bfloat16 or with a stride stays direct", "[conv]") {
  CHECK_FALSE(FourierPlan(with_dtype(square_step(kOfY, 9), DType::bfloat16), true).applies);
  CHECK_FALSE(FourierPlan(with_dtype(square_step(kOfY, 9), DType::float64), true).applies);
  Step step = with_dtype(square_step(kOfY, 9), DType::float32);
  step.attrs.set("dilations", Numbers{1, 2});
  CHECK_FALSE(FourierPlan(step, true).applies);
}

}  // namespace

}  // namespace tessera::test
