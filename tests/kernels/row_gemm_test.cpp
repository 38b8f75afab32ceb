// Products of rows that lie anywhere, against sums in float64, and what their bits depend on.
#include "kernels/cpu/row_gemm.h"

#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/pointwise_ops.h"
#include "support/catch.h"

namespace tessera::test {
namespace TESSERA_FILE {

using cpu::row_gemm;
using cpu::RowGemm;

bool has_avx2() { return cpu::usable_block_ops().size() > 1; }

/// Rows of A and C in a mixed order, each with more memory after it; B dense along one dim.
struct Product {
  int64_t m, n, k;
  bool transposed;
  std::vector<float> a, b, c;

  Product(bool transposed, int64_t m, int64_t n, int64_t k)
      : m(m),
        n(n),
        k(k),
        transposed(transposed),
        a(static_cast<size_t>(m * (k + 3))),
        b(static_cast<size_t>((k + 5) * (n + 5))),
        c(static_cast<size_t>(m * (n + 2)), 7.0f) {
    std::mt19937 random(static_cast<unsigned>(m * 1000003 + n * 1009 + k));
    std::uniform_real_distribution<float> values(-1, 1);
    for (float& x : a) x = values(random);
    for (float& x : b) x = values(random);
  }
  int64_t place(int64_t i) const { return i * 5 % m; }  // m is no multiple of 5
  int64_t b_row() const { return transposed ? 1 : n + 5; }
  int64_t b_column() const { return transposed ? k + 5 : 1; }
  float& result(int64_t i, int64_t j) { return c[static_cast<size_t>(place(i) * (n + 2) + j)]; }

  /// Of the first `rows` rows. All are added to one if `to_one`.
  void run(int64_t rows, bool overwrite, bool to_one = false) {
    std::vector<const float*> from;
    std::vector<float*> to;
    for (int64_t i = 0; i < rows; ++i) {
      from.push_back(&a[static_cast<size_t>(place(m - 1 - i) * (k + 3))]);
      to.push_back(&result(to_one ? 0 : i, 0));
    }
    row_gemm({rows, n, k, from.data(), b.data(), b_row(), b_column(), to.data(), overwrite});
  }
  /// The sum of the products, and of their magnitudes.
  std::pair<double, double> want(int64_t i, int64_t j) const {
    double sum = 0, size = 0;
    for (int64_t l = 0; l < k; ++l) {
      const double x = a[static_cast<size_t>(place(m - 1 - i) * (k + 3) + l)],
                   y = b[static_cast<size_t>(l * b_row() + j * b_column())];
      sum += x * y;
      size += std::abs(x * y);
    }
    return {sum, size};
  }
};

/// body(product) for every form and size.
template <class Body>
void each_product(Body&& body) {
  if (!has_avx2()) return;  // there are no loops for such a processor
  const int64_t sizes[][3] = {{1, 16, 1},    {2, 17, 9},     {3, 31, 16},   {7, 48, 33},
                              {13, 100, 5},  {31, 37, 50},   {64, 64, 64},  {9, 15, 513},
                              {257, 33, 64}, {524, 16, 130}, {6, 32, 1030}, {261, 20, 515}};
  for (const bool transposed : {false, true}) {
    for (const auto& [m, n, k] : sizes) {
      INFO((transposed ? "B transposed: " : "") << m << " x " << n << " x " << k);
      body(Product(transposed, m, n, k));
    }
  }
}

TEST_CASE("products of rows are the sums of float64") {
  each_product([](Product p) {
    for (const bool overwrite : {true, false}) {
      std::fill(p.c.begin(), p.c.end(), 7.0f);
      p.run(p.m, overwrite);
      for (int64_t i = 0; i < p.m; ++i) {
        for (int64_t j = 0; j < p.n; ++j) {
          const auto [sum, size] = p.want(i, j);
          const double before = overwrite ? 0 : 7;
          REQUIRE(std::abs(p.result(i, j) - (before + sum)) <= 3e-6 * (before + size));
        }
        // What lies between the rows of the result stays.
        REQUIRE(p.result(i, p.n) == 7);
      }
    }
  });
}

TEST_CASE("no other row changes a sum of a product of rows") {
  each_product([](Product p) {
    p.run(p.m, true);
    Product fewer(p.transposed, p.m, p.n, p.k);
    const int64_t rows = (p.m + 1) / 2;
    fewer.run(rows, true);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < p.n; ++j) REQUIRE(fewer.result(i, j) == p.result(i, j));
    }
  });
}

TEST_CASE("products of rows that are added to one row are all added") {
  each_product([](Product p) {
    p.run(p.m, false, true);
    for (int64_t j = 0; j < p.n; ++j) {
      double sum = 7, size = 7;
      for (int64_t i = 0; i < p.m; ++i) {
        const auto [one, magnitude] = p.want(i, j);
        sum += one;
        size += magnitude;
      }
      REQUIRE(std::abs(p.result(0, j) - sum) <= 2e-5 * size);
    }
  });
}

TEST_CASE("products of few rows, columns or terms are not for row_gemm") {
  CHECK_FALSE(cpu::is_for_row_gemm(31, 256, 256));
  CHECK_FALSE(cpu::is_for_row_gemm(256, 31, 256));
  CHECK_FALSE(cpu::is_for_row_gemm(256, 256, 31));
  CHECK(cpu::is_for_row_gemm(32, 32, 32) == (cpu::usable_block_ops().size() == 2));
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
