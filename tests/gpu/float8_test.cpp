// Matmuls in 8 bits on a GPU: operands that hold such numbers are stored in bytes first, which
// rounds nothing.
#include "base/float8.h"

#include <fmt/format.h>

#include <cmath>
#include <random>

#include "gpu/emulator.h"
#include "kernels/cuda/matmul_plan.h"
#include "ops/op_cases_run.h"
#include "support/apart.h"
#include "support/catch.h"
#include "tessera/rounding.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

struct Sizes {
  int64_t rows = 32, inner = 48, columns = 64;
  std::vector<std::string> weights = {"inner", "columns"};  ///< the order of dims
};

struct Outcome {
  std::vector<std::vector<double>> values;
};

/// float8_matmul and both of its gradients.
Outcome multiplied(CudaEmulator& gpu, const std::string& device, const Sizes& sizes, DType dtype,
                   const std::string& mesh = "a:1", const std::string& layout = "") {
  const WithEmulator here(gpu);
  Clusters clusters;
  Graph g;
  const Dim batch("batch", 2), rows("rows", sizes.rows), inner("inner", sizes.inner),
      columns("columns", sizes.columns);
  std::vector<Dim> of_weights;
  for (const std::string& d : sizes.weights) of_weights.push_back(d == "inner" ? inner : columns);
  const auto drawn = [&](const Shape& shape) {
    return cast(random_normal(g, shape, 0, 1, DType::float32), dtype);
  };
  Tensor x = drawn({batch, rows, inner}), w = drawn(Shape(of_weights)),
         r = drawn({batch, rows, columns});
  Tensor y = float8_matmul(x, w, {batch, rows, columns});
  std::vector<Tensor> wanted = gradients(sum_all(cast(y * r, DType::float32)), {x, w});
  wanted.push_back(y);
  for (size_t i = 0; i < wanted.size(); ++i)
    wanted[i] = cast(wanted[i], DType::float32).named(fmt::format("result{}", i));
  CompileOptions options{Mesh::parse(mesh), Layout::parse(layout), {{"f", wanted, false}}};
  options.device = device;
  gpu.float8_matmuls = 0;
  Session session(g, clusters.of(options.mesh.size()), options);
  session.run("f");
  Outcome outcome;
  for (const Tensor& t : wanted) {
    const Array values = session.fetch(t.name());
    outcome.values.emplace_back(values.data<float>(), values.data<float>() + values.elements());
  }
  return outcome;
}

/// Of the largest value.
double farthest(const Outcome& x, const Outcome& y) {
  double most = 0;
  for (size_t i = 0; i < x.values.size(); ++i) {
    double largest = 0, worst = 0;
    for (size_t k = 0; k < x.values[i].size(); ++k) {
      largest = std::max(largest, std::abs(x.values[i][k]));
      worst = std::max(worst, apart(x.values[i][k], y.values[i][k]));
    }
    most = std::max(most, worst / largest);
  }
  return most;
}

TEST_CASE("numbers of 8 bits go into bytes and back", "[rounding]") {
  for (int i = 0; i < 256; ++i) {
    const auto byte = static_cast<uint8_t>(i);
    const float x = from_e4m3(byte), y = from_e5m2(byte);
    CHECK(std::isnan(x) == ((i & 0x7f) == 0x7f));
    CHECK((std::isnan(x) || e4m3_bits(x) == byte));
    CHECK((std::isnan(y) || e5m2_bits(y) == byte));
    CHECK((std::isnan(x) || std::abs(x) <= 448));
  }
  CHECK(from_e4m3(0x01) == std::ldexp(1.0F, -9));
  CHECK(from_e4m3(0x08) == std::ldexp(1.0F, -6));
  CHECK(from_e4m3(0xfe) == -448);
  CHECK(from_e5m2(0x01) == std::ldexp(1.0F, -16));
  CHECK(from_e5m2(0x7b) == 57344);
  CHECK(e4m3_bits(INFINITY) == 0x7e);
  CHECK(std::isnan(from_e4m3(e4m3_bits(NAN))));
  CHECK(std::isnan(from_e5m2(e5m2_bits(NAN))));
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 100);
  Graph g({.eager = true});
  Array drawn(DType::float32, {"i"}, {1000});
  for (int64_t i = 0; i < 1000; ++i)
    drawn.data<float>()[i] = normal(random) * std::ldexp(1.0F, -int(i % 20));
  Tensor x = g.input("x", {Dim("i", 1000)}, DType::float32);
  g.feed("x", drawn);
  for (const Float8 format : {Float8::e4m3, Float8::e5m2}) {
    const Array rounded = g.fetch(round_to(x, format));
    for (int64_t i = 0; i < 1000; ++i) {
      const float r = rounded.data<float>()[i];
      CHECK((format == Float8::e4m3 ? from_e4m3(e4m3_bits(r)) : from_e5m2(e5m2_bits(r))) == r);
    }
  }
}

TEST_CASE("a GPU multiplies float8 operands in bytes, with the CPU's values", "[cuda]") {
  const KernelsAs as = has_ptx() ? GENERATE(KernelsAs::cpp, KernelsAs::ptx) : KernelsAs::cpp;
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    const double tolerance = dtype == DType::float32 ? 1e-6 : 1e-2;
    for (const auto& weights :
         {std::vector<std::string>{"inner", "columns"}, {"columns", "inner"}}) {
      INFO(to_string(dtype) << ", weights by " << weights[0]);
      CudaEmulator gpu;
      gpu.kernels_as = as;
      Sizes sizes;
      sizes.weights = weights;
      const Outcome cpu = multiplied(gpu, "cpu", sizes, dtype);
      CHECK(farthest(cpu, multiplied(gpu, "cuda", sizes, dtype)) < tolerance);
      CHECK(gpu.float8_matmuls == 3);
      CHECK(farthest(cpu, multiplied(gpu, "cuda", sizes, dtype, "a:2", "rows:a")) < tolerance);
      CHECK(gpu.float8_matmuls == 6);
      CHECK(farthest(cpu, multiplied(gpu, "cuda", sizes, dtype, "a:2", "columns:a")) < tolerance);
      CHECK(gpu.float8_matmuls == 6);
    }
  }
}

TEST_CASE("float8 operands that no library takes in bytes are multiplied as they are", "[cuda]") {
  CudaEmulator gpu;
  Sizes sizes;
  sizes.inner = 40;  // no multiple of 16
  const Outcome cpu = multiplied(gpu, "cpu", sizes, DType::bfloat16);
  CHECK(farthest(cpu, multiplied(gpu, "cuda", sizes, DType::bfloat16)) < 1e-2);
  CHECK(gpu.float8_matmuls == 0);
  gpu.has_float8 = false;  // an older GPU, or too small to pay
  sizes.inner = 48;
  const Outcome other = multiplied(gpu, "cpu", sizes, DType::bfloat16);
  CHECK(farthest(other, multiplied(gpu, "cuda", sizes, DType::bfloat16)) < 1e-2);
  CHECK(gpu.float8_matmuls == 0);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
