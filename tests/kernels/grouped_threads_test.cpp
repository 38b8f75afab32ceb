// Grouped matmuls by several threads: no number of them changes a bit, and values are the sums.
#include <cmath>
#include <map>
#include <random>

#include "kernels/common/grouped.h"
#include "kernels/common/types.h"
#include "kernels/cpu/thread_pool.h"
#include "program/specs.h"
#include "support/catch.h"

namespace tessera::test {
namespace TESSERA_FILE {

using namespace kernels;
using Numbers = std::vector<int64_t>;

/// Rows of tokens by choices, [token, choice, k], with matrices [group, k, n]. `adds`: a token's
/// choices are added up; `one_row`: its choices have one row x.
struct Sizes {
  int64_t tokens, choices, groups, k, n;
};

/// What the views are of: dims token, choice, k, n, group.
View view(const Numbers& sizes, bool token, bool choice, bool k, bool n, bool group) {
  View v;
  const bool has[] = {token, choice, k, n, group};
  v.strides.resize(5);
  for (size_t d = 0; d < 5; ++d) v.sizes.push_back(has[d] ? sizes[d] : 1);
  int64_t stride = 1;
  const size_t order[] = {3, 2, 1, 0};
  for (const size_t d : order) {
    if (!has[d]) continue;
    v.strides[d] = stride;
    stride *= sizes[d];
  }
  if (group) v.strides[4] = stride;
  return v;
}

AffineExpr number(int64_t n) {
  AffineExpr e;
  e.constant = n;
  return e;
}

enum class Form { dot, dot_of_tokens, sums, outer };

Step product(const Sizes& s, Form form, DType dtype) {
  const Numbers sizes = {s.tokens, s.choices, s.k, s.n, s.groups};
  const View x = view(sizes, true, form != Form::dot_of_tokens, true, false, false),
             matrices = view(sizes, false, false, true, true, true),
             z = view(sizes, true, form != Form::sums, false, true, false);
  View indices = view(sizes, true, true, false, false, false);
  Step step;
  step.kernel = form == Form::outer ? KernelKind::grouped_outer : KernelKind::grouped_dot;
  step.spec =
      GroupedSpec{{kGroupPosition, kGroupPosition, kGroupInner, kGroupOuter, kGroupIndexed}};
  step.in = {x, form == Form::outer ? z : matrices, indices};
  step.out = {form == Form::outer ? matrices : z};
  for (View* v : {&step.in[0], &step.in[1], &step.out[0]}) v->dtype = dtype;
  step.in[2].dtype = DType::int32;
  step.exprs = {number(0), number(s.groups)};
  return step;
}

int64_t extent(const View& v) {
  int64_t last = 0;
  for (size_t d = 0; d < v.sizes.size(); ++d) last += (v.sizes[d] - 1) * v.strides[d];
  return last + 1;
}

/// An expert takes a half of all rows; now and then a choice is dropped.
std::vector<int32_t> drawn_indices(const Sizes& s) {
  std::mt19937 random(7);
  std::vector<int32_t> indices;
  const auto draw = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  for (int64_t i = 0; i < s.tokens * s.choices; ++i)
    indices.push_back(static_cast<int32_t>(draw(2) == 0 ? s.groups / 2 : draw(s.groups + 1) - 1));
  return indices;
}

template <class T>
std::vector<T> run_by(const Sizes& s, Form form, DType dtype, int threads) {
  const Step step = product(s, form, dtype);
  const KernelEntry& entry = *find_cpu_kernel(step.kernel);
  std::vector<int32_t> indices = drawn_indices(s);
  std::vector<std::vector<T>> memory;
  KernelArgs args;
  DataFault fault;
  std::mt19937 random(11);
  std::uniform_real_distribution<float> values(-1, 1);
  const auto argument = [&](const View& v) {
    std::vector<T>& m = memory.emplace_back(static_cast<size_t>(extent(v)));
    for (T& e : m)
      e = store_as<T>(static_cast<Compute<T>>(to_float(store_as<BFloat16>(values(random)))));
    return TensorArg{m.data(), v.dtype, v.sizes, v.strides};
  };
  args.in = {argument(step.in[0]), argument(step.in[1]),
             TensorArg{indices.data(), DType::int32, step.in[2].sizes, step.in[2].strides}};
  args.out = {argument(step.out[0])};
  args.step = &step;
  args.fault = &fault;
  ThreadPool pool(threads);
  std::vector<std::byte> workspace(
      static_cast<size_t>(workspace_with_threads(entry, step, threads, 0)) + 64);
  args.workspace = workspace.data() + 64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64;
  bind_with_threads(entry, args, pool, 0)->run();
  return memory.back();
}

template <class T>
void check(const Sizes& s, Form form, DType dtype) {
  const std::vector<T> one = run_by<T>(s, form, dtype, 1);
  const std::vector<double> want = run_by<double>(s, form, DType::float64, 1);
  REQUIRE(one.size() == want.size());
  const double tolerance = is_narrow(dtype) ? 1.0 / 100 : 2e-6;
  for (size_t i = 0; i < one.size(); ++i)
    REQUIRE(std::abs(load_as(one[i]) - want[i]) <= tolerance * (10 + std::abs(want[i])));
  for (int threads : {2, 3, 8}) {
    const std::vector<T> other = run_by<T>(s, form, dtype, threads);
    INFO(threads << " threads");
    for (size_t i = 0; i < one.size(); ++i) REQUIRE(load_as(other[i]) == load_as(one[i]));
  }
}

const Sizes kMany{600, 2, 4, 32, 48}, kFew{9, 3, 5, 16, 32}, kManyGroups{40, 2, 30, 24, 16};

TEST_CASE("no number of threads changes a bit of a grouped matmul") {
  for (const Sizes& s : {kMany, kFew, kManyGroups}) {
    for (const Form form : {Form::dot, Form::dot_of_tokens, Form::sums, Form::outer}) {
      INFO(s.tokens << " tokens, form " << static_cast<int>(form));
      check<float>(s, form, DType::float32);
      check<BFloat16>(s, form, DType::bfloat16);
    }
  }
}

/// The sum in the order of the groups.
TEST_CASE("grouped matmuls add the rows of a token") {
  const Step step = product(kMany, Form::sums, DType::float64);
  const std::vector<double> got = run_by<double>(kMany, Form::sums, DType::float64, 2);
  const std::vector<double> rows = run_by<double>(kMany, Form::dot, DType::float64, 1);
  const std::vector<int32_t> indices = drawn_indices(kMany);
  REQUIRE(plan_grouped(step).blocks > 1);
  for (int64_t t = 0; t < kMany.tokens; ++t) {
    for (int64_t j = 0; j < kMany.n; ++j) {
      const auto row = [&](int64_t c) {
        return rows[static_cast<size_t>((t * kMany.choices + c) * kMany.n + j)];
      };
      CHECK(got[static_cast<size_t>(t * kMany.n + j)] == Approx(row(0) + row(1)).margin(1e-12));
    }
  }
}

TEST_CASE("threads share a grouped matmul by tasks where there are enough, else by columns") {
  const auto dim = [](const Sizes& s, Form form) {
    const Step step = product(s, form, DType::float32);
    const auto share = find_cpu_kernel(step.kernel)->share;
    // No number of threads decides it.
    CHECK(share(step, 2).dim == share(step, 32).dim);
    return share(step, 2).dim;
  };
  CHECK(dim(kMany, Form::dot) == -1);
  CHECK(dim(kManyGroups, Form::outer) == -1);
  CHECK(dim(kMany, Form::sums) == -1);
  CHECK(dim(kFew, Form::sums) == 3);
  CHECK(dim(kMany, Form::outer) == 2);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
