// Products of a few rows in split-K form: values, and bits that no number of threads changes.
#include "kernels/cpu/split_k.h"

#include <cmath>

#include "drawn_convs.h"
#include "kernels/cpu/thread_pool.h"

namespace tessera::test {
namespace TESSERA_FILE {

using namespace matmul_kinds;

/// `few` rows by a matrix [k, n] that is dense along its columns, whose rows are `row` elements
/// apart; or its transposed form, with few columns.
Step product(int64_t few, int64_t n, int64_t k, int64_t row, bool few_columns) {
  Step step;
  step.kernel = KernelKind::matmul;
  step.spec = MatmulSpec{{few_columns ? kColumn : kRow, few_columns ? kRow : kColumn, kSum}};
  View thin, matrix, result;
  thin.sizes = {few, 1, k}, thin.strides = {k + 3, 0, 1};
  matrix.sizes = {1, n, k}, matrix.strides = {0, 1, row};
  result.sizes = {few, n, 1}, result.strides = {n + 2, 1, 0};
  step.in = few_columns ? std::vector{matrix, thin} : std::vector{thin, matrix};
  step.out = {result};
  return step;
}

template <class T>
std::vector<T> run_by(const Step& step, DType dtype, int threads) {
  const KernelEntry& entry = *find_cpu_kernel(KernelKind::matmul);
  ThreadPool pool(threads);
  return run_as<T>(
      step, dtype, workspace_with_threads(entry, with_dtype(step, dtype), threads, 0),
      [&](const KernelArgs& args) { return bind_with_threads(entry, args, pool, 0); },
      [](std::vector<T>& elements) {  // fractions: the order of their sums shows in the bits
        for (size_t i = 0; i < elements.size(); ++i)
          elements[i] = stored<T>(static_cast<float>(load_as(elements[i])) +
                                  0.1f * static_cast<float>(i % 7));
      });
}

template <class T>
void check_product(const Step& step, int64_t few, int64_t n, DType dtype,
                   double float_tolerance = 2e-6) {
  const Step typed = with_dtype(step, dtype);
  const KernelEntry& entry = *find_cpu_kernel(KernelKind::matmul);
  // The sums of four parts.
  REQUIRE(entry.workspace_bytes(typed) == 4 * few * n * 4);
  const std::vector<T> got = run_by<T>(step, dtype, 1);
  const std::vector<double> want = run_by<double>(step, DType::float64, 1);
  const double tolerance = dtype == DType::bfloat16 ? 1.0 / 64 : float_tolerance;
  for (size_t i = 0; i < got.size(); ++i) {
    INFO("element " << i);
    REQUIRE(std::abs(load_as(got[i]) - want[i]) <= tolerance * (100 + std::abs(want[i])));
  }
  for (int threads : {2, 3, 4, 5, 8}) {
    const std::vector<T> other = run_by<T>(step, dtype, threads);
    INFO(threads << " threads");
    for (size_t i = 0; i < got.size(); ++i) REQUIRE(load_as(other[i]) == load_as(got[i]));
  }
}

TEST_CASE("split-K products have their value, and no number of threads changes a bit") {
  for (const auto& [few, n, k] : {std::array<int64_t, 3>{1, 64, 64},
                                  {1, 192, 577},
                                  {3, 40, 65},
                                  {8, 33, 131},
                                  {2, 2100, 70}}) {
    for (int64_t gap : {0, 5}) {
      for (bool few_columns : {false, true}) {
        INFO(few << " x " << n << " x " << k << ", gap " << gap
                 << (few_columns ? ", columns" : ""));
        const Step step = product(few, n, k, n + gap, few_columns);
        check_product<float>(step, few, n, DType::float32);
        check_product<BFloat16>(step, few, n, DType::bfloat16);
      }
    }
  }
}

TEST_CASE("products of far more terms than rows and columns are in split-K form, too") {
  constexpr int64_t kTerms = int64_t{1} << 15;
  for (const auto& [rows, n] : {std::array<int64_t, 2>{64, 200}, {130, 96}}) {
    INFO(rows << " x " << n);
    Step step = product(rows, n, kTerms + 7, n + 3, false);
    check_product<float>(step, rows, n, DType::float32, 1e-4);
    step.in[1].strides = {0, kTerms + 10, 1};  // dense along the terms
    check_product<float>(step, rows, n, DType::float32, 1e-4);
  }
  const KernelEntry& entry = *find_cpu_kernel(KernelKind::matmul);
  CHECK(entry.workspace_bytes(product(64, 200, kTerms - 1, 200, false)) == 0);
  CHECK(entry.workspace_bytes(product(64, 513, kTerms, 513, false)) == 0);
  CHECK(entry.workspace_bytes(product(40, 64, kTerms, 64, false)) == 0);
  CHECK(entry.workspace_bytes(with_dtype(product(64, 64, kTerms, 64, false), DType::float64)) == 0);
}

TEST_CASE("products of few terms or many rows are not in split-K form") {
  const KernelEntry& entry = *find_cpu_kernel(KernelKind::matmul);
  CHECK(entry.workspace_bytes(product(1, 32, 63, 32, false)) == 0);
  CHECK(entry.workspace_bytes(product(9, 32, 64, 32, false)) == 0);
  CHECK(entry.share(product(9, 320, 64, 320, false), 2).dim >= 0);
  CHECK(entry.share(product(1, 320, 64, 320, false), 2).dim == -1);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
