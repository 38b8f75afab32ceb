// Thin products of every instruction set against sums in float64, and what their bits depend on.
#include "kernels/cpu/thin_gemm.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/common/types.h"
#include "support/catch.h"

namespace tessera::test {
namespace TESSERA_FILE {

using cpu::Gemm;
using cpu::is_thin;
using cpu::ThinOps;
using cpu::usable_thin_ops;

/// In which dims the operands are dense.
enum class Form { along_sums, along_columns };
constexpr Form kForms[] = {Form::along_sums, Form::along_columns};

/// Operands with more memory between their rows or columns, and a result with more between rows.
template <class T>
struct Product {
  Gemm g;
  std::vector<T> a, b;

  Product(Form form, int64_t m, int64_t n, int64_t k) : g{m, n, k, k + 3, 1, n + 5, 1, n + 2, 1} {
    if (form == Form::along_sums) {
      g.b_row = 1, g.b_column = k + 5;
    } else {
      g.a_row = 1, g.a_column = m + 2;
    }
    std::mt19937 random(static_cast<unsigned>(m * 1000003 + n * 1009 + k));
    std::uniform_real_distribution<float> values(-1, 1);
    a.resize(static_cast<size_t>((m - 1) * g.a_row + (k - 1) * g.a_column + 1));
    b.resize(static_cast<size_t>((k - 1) * g.b_row + (n - 1) * g.b_column + 1));
    for (T& x : a) x = kernels::store_as<T>(values(random));
    for (T& x : b) x = kernels::store_as<T>(values(random));
  }
  size_t place(int64_t i, int64_t j) const {
    return static_cast<size_t>(i * g.c_row + j * g.c_column);
  }
  std::vector<float> result(float value) const {
    return std::vector<float>(place(g.m - 1, g.n + 1) + 1, value);
  }
  std::vector<float> run(const ThinOps& ops, float initial, bool overwrite) const {
    std::vector<float> c = result(initial);
    if constexpr (std::is_same_v<T, float>) {
      ops.float32(g, a.data(), b.data(), c.data(), overwrite);
    } else {
      ops.bfloat16(g, a.data(), b.data(), c.data(), overwrite);
    }
    return c;
  }
  /// The sum of the products, and of their magnitudes.
  std::pair<double, double> want(int64_t i, int64_t j) const {
    double sum = 0, size = 0;
    for (int64_t l = 0; l < g.k; ++l) {
      const double x = kernels::load_as(a[static_cast<size_t>(i * g.a_row + l * g.a_column)]),
                   y = kernels::load_as(b[static_cast<size_t>(l * g.b_row + j * g.b_column)]);
      sum += x * y;
      size += std::abs(x * y);
    }
    return {sum, size};
  }
};

const int64_t kSizes[][3] = {{1, 1, 16},  {1, 5, 17},    {2, 4, 31},   {3, 9, 32},
                             {4, 7, 48},  {5, 13, 63},   {8, 8, 100},  {7, 64, 577},
                             {8, 33, 40}, {6, 16, 1536}, {2, 2100, 21}};

/// body(ops, product) for every instruction set, form and size.
template <class T, class Body>
void each_product(Body&& body) {
  for (const ThinOps* ops : usable_thin_ops()) {
    for (const Form form : kForms) {
      for (const auto& [m, n, k] : kSizes) {
        INFO(ops->name << (form == Form::along_sums ? ", along sums: " : ", along columns: ") << m
                       << " x " << n << " x " << k);
        body(*ops, Product<T>(form, m, n, k));
      }
    }
  }
}

template <class T>
void check_values() {
  each_product<T>([](const ThinOps& ops, const Product<T>& p) {
    const std::vector<float> set = p.run(ops, 7, true), added = p.run(ops, 7, false);
    for (int64_t i = 0; i < p.g.m; ++i) {
      for (int64_t j = 0; j < p.g.n; ++j) {
        const auto [sum, size] = p.want(i, j);
        REQUIRE(std::abs(set[p.place(i, j)] - sum) <= 1e-6 * size);
        REQUIRE(std::abs(added[p.place(i, j)] - (7 + sum)) <= 1e-6 * (7 + size));
      }
      // What lies between the rows of the result stays.
      CHECK(set[p.place(i, p.g.n)] == 7);
    }
  });
}

TEST_CASE("thin products are the sums of float64, for every instruction set") {
  check_values<float>();
  check_values<BFloat16>();
}

TEST_CASE("a thin product rounds to bfloat16 once") {
  each_product<BFloat16>([](const ThinOps& ops, const Product<BFloat16>& p) {
    const std::vector<float> wide = p.run(ops, 0, true);
    std::vector<BFloat16> narrow(wide.size());
    ops.rounded(p.g, p.a.data(), p.b.data(), narrow.data());
    for (int64_t i = 0; i < p.g.m; ++i) {
      for (int64_t j = 0; j < p.g.n; ++j) {
        const BFloat16 want = kernels::store_as<BFloat16>(wide[p.place(i, j)]);
        REQUIRE(to_float(narrow[p.place(i, j)]) == to_float(want));
      }
    }
  });
}

/// No other row or column changes a sum, so that no number of threads does.
template <class T>
void check_bits() {
  each_product<T>([](const ThinOps& ops, const Product<T>& p) {
    const std::vector<float> whole = p.run(ops, 0, true);
    const int64_t step = 1 + p.g.n / 40;
    for (int64_t i = 0; i < p.g.m; ++i) {
      for (int64_t j = 0; j < p.g.n; j += step) {
        Product<T> one = p;
        one.g.m = one.g.n = 1;
        one.a.erase(one.a.begin(), one.a.begin() + i * p.g.a_row);
        one.b.erase(one.b.begin(), one.b.begin() + j * p.g.b_column);
        REQUIRE(one.run(ops, 0, true)[0] == whole[p.place(i, j)]);
      }
    }
  });
}

TEST_CASE("the order of a thin product's sums depends on the number of terms alone") {
  check_bits<float>();
  check_bits<BFloat16>();
}

template <class T>
void check_widths() {
  const auto all = usable_thin_ops();
  each_product<T>([&](const ThinOps&, const Product<T>& p) {
    for (size_t i = 2; i < all.size(); ++i)
      REQUIRE(p.run(*all[i], 0, true) == p.run(*all[1], 0, true));
  });
}

TEST_CASE("with a fused multiply-add the width of the vectors changes no thin product") {
  check_widths<float>();
  check_widths<BFloat16>();
}

TEST_CASE("which products are thin") {
  const Gemm g{8, 64, 16, 16, 1, 1, 16, 64, 1};
  const auto with = [&](auto change) {
    Gemm other = g;
    change(other);
    return is_thin(other);
  };
  CHECK(is_thin(g));
  CHECK(with([](Gemm& x) { x.m = 64, x.n = 8; }));
  CHECK_FALSE(with([](Gemm& x) { x.m = 9; }));
  CHECK_FALSE(with([](Gemm& x) { x.k = 15; }));
  CHECK_FALSE(with([](Gemm& x) { x.a_row = 1, x.a_column = 8; }));
  CHECK_FALSE(with([](Gemm& x) { x.b_row = 2, x.b_column = 32; }));
  // Dense along the columns, whatever the few rows are.
  CHECK(with([](Gemm& x) { x.b_row = 64, x.b_column = 1; }));
  CHECK(with([](Gemm& x) { x.a_row = 1, x.a_column = 8, x.b_row = 64, x.b_column = 1; }));
  CHECK_FALSE(with([](Gemm& x) { x.m = 9, x.b_row = 64, x.b_column = 1; }));
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
