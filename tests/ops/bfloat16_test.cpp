// What is summed in 16-bit types is what it is in float64, to a rounding of the result: products of
// matrices, however their dims lie, and softmax.
#include <fmt/format.h>

#include <cmath>

#include "ops/sum_to.h"
#include "support/catch.h"
#include "tessera/tessera.h"

using namespace tessera;

namespace TESSERA_FILE {

const Dim b("b", 3), m("m", 24), n("n", 17), k("k", 40), j("j", 5);

/// The einsum of two tensors of small numbers that bfloat16 holds exactly.
std::vector<double> product(DType dtype, const Shape& x, const Shape& y, const Shape& out) {
  Graph g;
  const auto numbers = [&](const Shape& shape, double step) {
    Tensor sum = constant(g, 0, DType::float32, shape);
    for (const Dim& d : shape) sum = sum * step + cast(iota(g, d, DType::int32), DType::float32);
    const Tensor small = mod(sum, constant(g, 13, DType::float32)) - 6.0;
    return cast(transpose(small, shape), dtype);
  };
  Tensor a = numbers(x, 3), c = numbers(y, 5);
  Tensor z = cast(sum_of_products({a, c}, out), DType::float64).named("z");
  Cluster cluster = Cluster::threads(1);
  Session session(g, cluster, {Mesh::parse("a:1"), {}, {{"f", {z}, false}}});
  session.run("f");
  const Array result = session.fetch("z");
  std::vector<double> values;
  for (int64_t i = 0; i < result.elements(); ++i) values.push_back(result.at(i));
  return values;
}

TEST_CASE("products of bfloat16 in every orientation", "[fast]") {
  const std::vector<Shape> lefts = {{m, k}, {k, m}, {b, m, k}, {m, b, k}, {m, j, k}, {j, k, m}},
                           rights = {{k, n}, {n, k}, {b, k, n}, {k, b, n}, {j, n, k}, {k, j, n}};
  const auto has = [](const Shape& s, const Dim& d) { return s.has(d.name); };
  int compared = 0;
  for (const Shape& x : lefts) {
    for (const Shape& y : rights) {
      for (const bool swapped : {false, true}) {
        for (const bool keeps_j : {false, true}) {
          std::vector<Dim> dims = swapped ? std::vector<Dim>{n, m} : std::vector<Dim>{m, n};
          if (has(x, b) || has(y, b)) dims.push_back(b);
          if (keeps_j && (has(x, j) || has(y, j))) dims.push_back(j);
          const std::vector<double> found = product(DType::bfloat16, x, y, Shape(dims)),
                                    exact = product(DType::float64, x, y, Shape(dims));
          REQUIRE(found.size() == exact.size());
          double worst = 0;
          for (size_t i = 0; i < exact.size(); ++i)
            worst =
                std::max(worst, std::abs(found[i] - exact[i]) / std::max(1.0, std::abs(exact[i])));
          INFO(x.to_string() << " " << y.to_string() << " -> " << Shape(dims).to_string());
          CHECK(worst <= 1.0 / 256);
          ++compared;
        }
      }
    }
  }
  CHECK(compared == 144);
}

TEST_CASE("softmax of 16-bit types is rounded once", "[fast]") {
  const Dim rows("rows", 4), cols("cols", 300);
  for (DType dtype : {DType::bfloat16, DType::float16}) {
    std::vector<std::vector<double>> found, exact;
    for (DType computed : {dtype, DType::float64}) {
      Graph g;
      Tensor x = cast(random_normal(g, {rows, cols}, 0, 6, DType::float32), dtype);
      Tensor y = cast(random_normal(g, {rows, cols}, 0, 1, DType::float32), dtype);
      x = cast(x, computed), y = cast(y, computed);
      std::vector<Tensor> results = {softmax(x, "cols"), log_softmax(x, "cols"),
                                     reduce_logsumexp(x, "cols")};
      for (size_t i : {0, 1}) results.push_back(gradients(sum_all(results[i] * y), {x})[0]);
      for (size_t i = 0; i < results.size(); ++i)
        results[i] = cast(results[i], DType::float64).named(fmt::format("r{}", i));
      Cluster cluster = Cluster::threads(1);
      Session session(g, cluster, {Mesh::parse("a:1"), {}, {{"f", results, false}}});
      session.run("f");
      for (const Tensor& r : results) {
        const Array array = session.fetch(r.name());
        std::vector<double> values;
        for (int64_t i = 0; i < array.elements(); ++i) values.push_back(array.at(i));
        (computed == dtype ? found : exact).push_back(values);
      }
    }
    const double half = dtype == DType::bfloat16 ? 0x1p-8 : 0x1p-11;  // of a unit in the last place
    for (size_t r = 0; r < exact.size(); ++r) {
      INFO(to_string(dtype) << " result " << r);
      double worst = 0;
      for (size_t i = 0; i < exact[r].size(); ++i) {
        const double size = std::abs(exact[r][i]);
        // Subnormal float16 are steps of 2^-24.
        worst = std::max(worst, std::abs(found[r][i] - exact[r][i]) / std::max(size, 0x1p-13));
      }
      // Of gradients the rounded result is an operand: what is lost is a part of the greatest.
      if (r < 3) CHECK(worst <= half * 1.01);
      double error = 0, norm = 0;
      for (size_t i = 0; i < exact[r].size(); ++i) {
        error += std::pow(found[r][i] - exact[r][i], 2);
        norm += std::pow(exact[r][i], 2);
      }
      CHECK(std::sqrt(error / norm) <= 2 * half);
    }
  }
}

}  // namespace TESSERA_FILE
