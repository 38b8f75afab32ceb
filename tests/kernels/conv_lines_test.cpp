// Convolutions large enough for patches without the window of the first spatial dim, which float64
// has, for a library's kernels, which float32 may get, and for the Fourier domain, where its large
// filters go: values and gradients against plain loops, split over threads and ranks.
#include <cmath>

#include "support/catch.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

constexpr int64_t kImages = 4, kSize = 20, kIn = 24, kOut = 5;

Array waves(DType dtype, const std::vector<std::string>& dims, const std::vector<int64_t>& sizes) {
  Array a(dtype, dims, sizes);
  for (int64_t i = 0; i < a.elements(); ++i) {
    const double x = std::sin(0.37 * static_cast<double>(i * i % 1009));
    if (dtype == DType::float64)
      a.data<double>()[i] = x;
    else
      a.data<float>()[i] = static_cast<float>(x);
  }
  return a;
}

void check_equal(const Array& got, const std::vector<double>& want, const char* what) {
  REQUIRE(got.elements() == static_cast<int64_t>(want.size()));
  for (int64_t i = 0; i < got.elements(); ++i) {
    INFO(what << " element " << i);
    const double off = got.dtype == DType::float64 ? 1e-10 : 1e-4;
    REQUIRE(got.at(i) == Approx(want[static_cast<size_t>(i)]).epsilon(off).margin(off));
  }
}

void check_conv(DType dtype, int64_t window, int64_t dilation, const std::string& mesh,
                const std::string& layout, int threads) {
  INFO("window " << window << ", dilation " << dilation << ", " << layout << ", " << threads
                 << " threads");
  Graph g;
  const Dim n("n", kImages), h("h", kSize), w("w", kSize), c("c", kIn), o("o", kOut);
  Tensor x = g.input("x", {n, h, w, c}, dtype);
  Tensor f = g.input("f", {Dim("filter_h", window), Dim("filter_w", window), c, o}, dtype);
  Tensor y = conv(x, f, {{{"h", "", 1, dilation}, {"w", "", 1, dilation}}}).named("y");
  Tensor back = g.input("back", y.shape(), dtype);
  const std::vector<Tensor> grads = gradients(sum_all(y * back), {x, f});
  grads[0].named("gx"), grads[1].named("gf");
  Cluster cluster = Cluster::threads(Mesh::parse(mesh).size());
  Session session(g, cluster,
                  {Mesh::parse(mesh),
                   Layout::parse(layout),
                   {{"f", {y, grads[0], grads[1]}, false}},
                   0,
                   threads});
  const Array xs = waves(dtype, {"n", "h", "w", "c"}, {kImages, kSize, kSize, kIn});
  const Array fs = waves(dtype, {"filter_h", "filter_w", "c", "o"}, {window, window, kIn, kOut});
  const Array bs = waves(dtype, {"n", "h", "w", "o"}, {kImages, kSize, kSize, kOut});
  session.feed("x", xs), session.feed("f", fs), session.feed("back", bs);
  session.run("f");
  std::vector<double> ys(static_cast<size_t>(bs.elements())),
      gx(static_cast<size_t>(xs.elements())), gf(static_cast<size_t>(fs.elements()));
  const auto place = [&](int64_t at, int64_t k) { return at + (k - window / 2) * dilation; };
  for (int64_t i = 0; i < kImages * kSize * kSize; ++i) {
    const int64_t row = i / kSize % kSize, column = i % kSize, image = i / (kSize * kSize);
    for (int64_t k = 0; k < window * window; ++k) {
      const int64_t p = place(row, k / window), q = place(column, k % window);
      if (p < 0 || p >= kSize || q < 0 || q >= kSize) continue;
      for (int64_t e = 0; e < kIn * kOut; ++e) {
        const int64_t a = ((image * kSize + p) * kSize + q) * kIn + e / kOut,
                      b = k * kIn * kOut + e, r = i * kOut + e % kOut;
        ys[static_cast<size_t>(r)] += xs.at(a) * fs.at(b);
        gx[static_cast<size_t>(a)] += bs.at(r) * fs.at(b);
        gf[static_cast<size_t>(b)] += bs.at(r) * xs.at(a);
      }
    }
  }
  check_equal(session.fetch("y"), ys, "y");
  check_equal(session.fetch("gx"), gx, "gradient of x");
  check_equal(session.fetch("gf"), gf, "gradient of the filter");
}

TEST_CASE("convolutions over lines of patches are those of plain loops", "[conv]") {
  for (const DType dtype : {DType::float64, DType::float32}) {
    for (const int64_t dilation : {1, 3}) {
      check_conv(dtype, 3, dilation, "p:1", "", 1);
      check_conv(dtype, 3, dilation, "p:1", "", 2);
      check_conv(dtype, 3, dilation, "p:2", "h:p", 1);
      check_conv(dtype, 3, dilation, "p:3", "h:p", 1);
      check_conv(dtype, 3, dilation, "p:2;q:2", "w:p;c:q", 1);
    }
  }
}

TEST_CASE("convolutions with a large filter are those of plain loops", "[conv]") {
  check_conv(DType::float32, 9, 1, "p:1", "", 1);
  check_conv(DType::float32, 9, 1, "p:1", "", 2);
  check_conv(DType::float32, 9, 1, "p:2", "h:p", 1);
  check_conv(DType::float32, 9, 1, "p:3", "h:p", 2);
  check_conv(DType::float32, 9, 1, "p:2;q:2", "h:p;w:q", 1);
  check_conv(DType::float32, 9, 1, "p:2;q:2", "w:p;c:q", 1);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
