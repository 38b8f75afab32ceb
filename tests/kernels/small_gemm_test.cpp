// Small products of every instruction set against sums in float64, and what their bits depend on.
#include "kernels/cpu/small_gemm.h"

#include <cmath>
#include <random>
#include <vector>

#include "support/catch.h"

namespace tessera::test {
namespace TESSERA_FILE {

using cpu::Gemm;
using cpu::SmallOps;
using cpu::usable_small_ops;

/// Operands with more memory between their rows or columns, and a result with more between rows.
struct Product {
  Gemm g;
  std::vector<float> a, b;

  Product(bool transposed, int64_t m, int64_t n, int64_t k)
      : g{m, n, k, transposed ? 1 : k + 3, transposed ? m + 2 : 1, n + 5, 1, n + 2, 1} {
    std::mt19937 random(static_cast<unsigned>(m * 1000003 + n * 1009 + k));
    std::uniform_real_distribution<float> values(-1, 1);
    a.resize(static_cast<size_t>((m - 1) * g.a_row + (k - 1) * g.a_column + 1));
    b.resize(static_cast<size_t>((k - 1) * g.b_row + n));
    for (float& x : a) x = values(random);
    for (float& x : b) x = values(random);
  }
  size_t place(int64_t i, int64_t j) const { return static_cast<size_t>(i * g.c_row + j); }
  std::vector<float> run(const SmallOps& ops, float initial, bool overwrite) const {
    std::vector<float> c(place(g.m - 1, g.n + 1) + 1, initial);
    ops.float32(g, a.data(), b.data(), c.data(), overwrite);
    return c;
  }
  /// The sum of the products, and of their magnitudes.
  std::pair<double, double> want(int64_t i, int64_t j) const {
    double sum = 0, size = 0;
    for (int64_t l = 0; l < g.k; ++l) {
      const double x = a[static_cast<size_t>(i * g.a_row + l * g.a_column)],
                   y = b[static_cast<size_t>(l * g.b_row + j)];
      sum += x * y;
      size += std::abs(x * y);
    }
    return {sum, size};
  }
};

/// body(ops, product) for every instruction set, form and size.
template <class Body>
void each_product(Body&& body) {
  const int64_t sizes[][3] = {{1, 16, 1},   {2, 17, 9},   {3, 31, 16},  {7, 48, 33}, {16, 32, 256},
                              {13, 100, 5}, {31, 37, 50}, {64, 64, 64}, {9, 15, 512}};
  for (const SmallOps* ops : usable_small_ops()) {
    for (const bool transposed : {false, true}) {
      for (const auto& [m, n, k] : sizes) {
        INFO(ops->name << (transposed ? ", transposed: " : ": ") << m << " x " << n << " x " << k);
        body(*ops, Product(transposed, m, n, k));
      }
    }
  }
}

TEST_CASE("small products are the sums of float64, for every instruction set") {
  each_product([](const SmallOps& ops, const Product& p) {
    const std::vector<float> set = p.run(ops, 7, true), added = p.run(ops, 7, false);
    for (int64_t i = 0; i < p.g.m; ++i) {
      for (int64_t j = 0; j < p.g.n; ++j) {
        const auto [sum, size] = p.want(i, j);
        REQUIRE(std::abs(set[p.place(i, j)] - sum) <= 2e-6 * size);
        REQUIRE(std::abs(added[p.place(i, j)] - (7 + sum)) <= 2e-6 * (7 + size));
      }
      // What lies between the rows of the result stays.
      CHECK(set[p.place(i, p.g.n)] == 7);
    }
  });
}

TEST_CASE("no other row or column changes a sum of a small product") {
  each_product([](const SmallOps& ops, const Product& p) {
    const std::vector<float> whole = p.run(ops, 0, true);
    for (int64_t i = 0; i < p.g.m; i += 3) {
      for (int64_t j = 0; j < p.g.n; j += 5) {
        Product one = p;
        one.g.m = one.g.n = 1;
        one.a.erase(one.a.begin(), one.a.begin() + i * p.g.a_row);
        one.b.erase(one.b.begin(), one.b.begin() + j);
        REQUIRE(one.run(ops, 0, true)[0] == whole[p.place(i, j)]);
      }
    }
  });
}

TEST_CASE("what is large, or not dense along the rows of B and C, is no small product") {
  const bool is_fast = usable_small_ops().size() > 1;
  const Gemm small{64, 64, 64, 64, 1, 64, 1, 64, 1};
  CHECK(cpu::is_small(small) == is_fast);
  Gemm g = small;
  g.m = 256;
  CHECK_FALSE(cpu::is_small(g));
  g = small, g.b_row = 1, g.b_column = 64;
  CHECK_FALSE(cpu::is_small(g));
  g = small, g.c_row = 1, g.c_column = 64;
  CHECK_FALSE(cpu::is_small(g));
  g = small, g.n = 15;
  CHECK_FALSE(cpu::is_small(g));
  g = small, g.n = 17, g.k = 513;  // columns that would be copied
  CHECK_FALSE(cpu::is_small(g));
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
