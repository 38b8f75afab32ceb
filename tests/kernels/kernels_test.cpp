// Every structured CPU kernel x dtypes x odd sizes x permuted and broadcast strides against naive
// float64 loops.
#include "kernels/kernels_cases.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "support/sum_of_two.h"

namespace tessera::test {
namespace TESSERA_FILE {

const DType kAll[] = {DType::float32, DType::float64, DType::bfloat16, DType::float16,
                      DType::int32,   DType::int64,   DType::uint8,    DType::bool_};
const DType kNumbers[] = {DType::float32, DType::float64, DType::bfloat16,
                          DType::float16, DType::int32,   DType::int64};

struct ContractCase {
  std::vector<int64_t> kinds;  ///< of matmul_kinds
  Sizes sizes;
  std::vector<int> a, b, c;  ///< memory orders
};

/// `adds`: to what C holds.
void check_contract(const ContractCase& test, DType t, bool adds = false) {
  auto operand = [&](const std::vector<int>& order, int64_t lacks) {
    Sizes sizes = test.sizes;
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (test.kinds[d] == lacks) sizes[d] = 1;
    }
    Sizes strides = permuted_strides(sizes, order);
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (test.kinds[d] == lacks) strides[d] = 0;
    }
    return Box(t, sizes, strides);
  };
  Box a = operand(test.a, 2), b = operand(test.b, 1), c = operand(test.c, 3);
  fill_random(a, 1);
  fill_random(b, 2);
  std::vector<double> want(c.memory.size(), 0), scale(c.memory.size(), 0);
  each(test.sizes, [&](const Sizes& i) {
    const double x = a.get(i), y = b.get(i);
    want[c.offset(i)] += x * y;
    scale[c.offset(i)] += std::abs(x * y);
  });
  each(c.sizes, [&](const Sizes& i) {
    c.set(i, 99);
    if (!adds) return;
    want[c.offset(i)] += 99;
    scale[c.offset(i)] += 99;
  });
  Step step;
  MatmulSpec spec;
  for (const int64_t kind : test.kinds)
    spec.kinds.push_back(static_cast<matmul_kinds::DimKind>(kind));
  step.spec = spec;
  std::vector<Box*> in = {&a, &b};
  if (adds) {
    in.push_back(&c);
    step.pointwise = sum_of_two(t);
  }
  run_kernel(KernelKind::matmul, step, in, {&c});
  each(c.sizes, [&](const Sizes& i) {
    if (!close(c.get(i), want[c.offset(i)], t, scale[c.offset(i)])) {
      FAIL(to_string(t) << ": " << c.get(i) << " instead of " << want[c.offset(i)]);
    }
  });
}

TEST_CASE("matmul equals naive sums for every kind of strides") {
  const std::vector<ContractCase> cases = {
      {{1, 2, 3}, {17, 23, 31}, {0, 1, 2}, {2, 1, 0}, {0, 1, 2}},  // x w
      {{1, 2, 3}, {17, 23, 31}, {2, 1, 0}, {0, 1, 2}, {0, 1, 2}},  // both transposed
      {{1, 2, 3}, {33, 9, 40}, {0, 1, 2}, {0, 1, 2}, {1, 0, 2}},   // C transposed
      {{0, 1, 2, 3}, {3, 20, 21, 22}, {0, 1, 3, 2}, {0, 2, 3, 1}, {1, 0, 2, 3}},
      {{0, 0, 1, 2, 3}, {2, 3, 16, 17, 18}, {0, 2, 1, 4, 3}, {0, 3, 1, 4, 2}, {0, 2, 1, 3, 4}},
      {{1, 1, 2, 3, 3}, {3, 7, 19, 4, 5}, {0, 3, 1, 4, 2}, {3, 4, 2, 0, 1}, {0, 1, 2, 3, 4}},
      {{1, 1, 2, 3, 3}, {3, 7, 19, 4, 5}, {4, 1, 0, 3, 2}, {4, 3, 2, 0, 1}, {1, 2, 0, 3, 4}},
      {{1, 2, 2, 3}, {30, 4, 6, 25}, {0, 3, 1, 2}, {1, 3, 2, 0}, {1, 0, 2, 3}},
      {{1, 2, 3}, {1, 130, 70}, {0, 1, 2}, {2, 1, 0}, {0, 1, 2}},  // gemv
      {{1, 2, 3}, {1, 130, 70}, {0, 1, 2}, {1, 2, 0}, {0, 1, 2}},
      {{1, 2, 3}, {150, 1, 60}, {0, 2, 1}, {2, 1, 0}, {0, 1, 2}},
      {{1, 2, 3}, {150, 1, 60}, {2, 0, 1}, {2, 1, 0}, {0, 1, 2}},
      {{1, 2, 3}, {1, 1, 1000}, {0, 1, 2}, {0, 1, 2}, {0, 1, 2}},  // dot
      {{1, 2, 3}, {40, 50, 1}, {0, 1, 2}, {2, 1, 0}, {0, 1, 2}},   // outer product
      {{1, 2}, {13, 600}, {0, 1}, {0, 1}, {0, 1}},
      {{0, 0}, {13, 60}, {0, 1}, {1, 0}, {0, 1}},  // product
      {{0, 3}, {50, 37}, {0, 1}, {1, 0}, {0, 1}},  // batched dot
      {{0, 1, 2, 3}, {40, 2, 3, 4}, {0, 1, 3, 2}, {0, 2, 3, 1}, {0, 1, 2, 3}},
      {{}, {}, {}, {}, {}},
      {{1, 2, 3}, {5, 6, 0}, {0, 1, 2}, {2, 1, 0}, {0, 1, 2}},  // nothing to sum: zero
      {{1, 2, 3}, {0, 6, 5}, {0, 1, 2}, {2, 1, 0}, {0, 1, 2}},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    INFO("case " << i);
    for (DType t : kNumbers) check_contract(cases[i], t);
    for (DType t : {DType::float32, DType::float64}) check_contract(cases[i], t, true);
  }
}

TEST_CASE("matmul refuses an epilogue that the CPU cannot run") {
  const ContractCase product = {{1, 2, 3}, {17, 23, 31}, {0, 1, 2}, {2, 1, 0}, {0, 1, 2}};
  expect_error(ErrorKind::internal, {"matmul has an epilogue that the CPU cannot run"},
               [&] { check_contract(product, DType::bfloat16, true); });
}

TEST_CASE("copy moves every element, whatever the strides") {
  const Sizes sizes = {5, 37, 21};
  const std::vector<std::vector<int>> orders = {
      {0, 1, 2}, {0, 2, 1}, {2, 1, 0}, {1, 0, 2}, {1, 2, 0}};
  for (DType t : kAll) {
    for (const auto& from : orders) {
      for (const auto& to : orders) {
        Box in(t, sizes, permuted_strides(sizes, from)), out(t, sizes, permuted_strides(sizes, to));
        fill_random(in, 3);
        run_kernel(KernelKind::copy, {}, {&in}, {&out});
        each(sizes, [&](const Sizes& i) {
          if (in.get(i) != out.get(i)) FAIL("copy of " << to_string(t));
        });
      }
    }
    Box row(t, sizes, {0, 0, 1}), whole(t, sizes, {37 * 25, 25, 1});
    fill_random(row, 4);
    run_kernel(KernelKind::copy, {}, {&row}, {&whole});
    each(sizes, [&](const Sizes& i) {
      if (row.get(i) != whole.get(i)) FAIL("broadcast copy of " << to_string(t));
    });
  }
}

TEST_CASE("fill writes its window only") {
  for (DType t : kAll) {
    Box out(t, {3, 5}, {8, 1});
    Step step;
    step.spec = FillSpec{t == DType::bool_ ? 3.0 : 7.0};
    run_kernel(KernelKind::fill, step, {}, {&out});
    const Box window(t, {3, 8}, {8, 1});
    for (int64_t i = 0; i < 2; ++i) {
      for (int64_t j = 0; j < 8; ++j) {
        const double want = j >= 5 ? 0 : t == DType::bool_ ? 1 : 7;
        CHECK(out.get({i, j}) == want);
      }
    }
  }
}

double combine(Combiner c, double x, double y) {
  switch (c) {
    case Combiner::sum:
      return x + y;
    case Combiner::prod:
      return x * y;
    case Combiner::max:
      return std::isnan(x) || std::isnan(y) ? NAN : std::max(x, y);
    case Combiner::min:
      return std::isnan(x) || std::isnan(y) ? NAN : std::min(x, y);
    case Combiner::any:
      return static_cast<int>(x) | static_cast<int>(y);
    case Combiner::all:
      return static_cast<int>(x) & static_cast<int>(y);
  }
  return 0;
}

void check_reduce(DType t, Combiner combiner, const Sizes& sizes, const std::vector<int>& order,
                  unsigned mask) {
  Box in(t, sizes, permuted_strides(sizes, order));
  fill_random(in, 5);
  if (combiner == Combiner::prod && is_floating(t)) {
    each(sizes, [&](const Sizes& i) { in.set(i, 1 + in.get(i) / 256); });
  }
  Sizes out_sizes = sizes;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (mask >> d & 1u) out_sizes[d] = 1;
  }
  Sizes out_strides = dense_strides(out_sizes);
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (mask >> d & 1u) out_strides[d] = 0;
  }
  Box out(t, out_sizes, out_strides);
  std::vector<double> want(out.memory.size()), scale(out.memory.size());
  std::vector<bool> seen(out.memory.size(), false);
  each(sizes, [&](const Sizes& i) {
    const int64_t o = out.offset(i);
    want[o] = seen[o] ? combine(combiner, want[o], in.get(i)) : in.get(i);
    scale[o] += std::abs(in.get(i));
    seen[o] = true;
  });
  Step step;
  step.combiner = combiner;
  run_kernel(KernelKind::reduce, step, {&in}, {&out});
  each(out_sizes, [&](const Sizes& i) {
    const int64_t o = out.offset(i);
    const double allowance = combiner == Combiner::sum    ? scale[o]
                             : combiner == Combiner::prod ? 16 * want[o]
                                                          : 0;
    if (!close(out.get(i), want[o], t, allowance)) {
      FAIL("reduce " << to_string(combiner) << " of " << to_string(t) << ", mask " << mask << ": "
                     << out.get(i) << " instead of " << want[o]);
    }
  });
}

TEST_CASE("reduce equals naive combination along every set of dims") {
  for (DType t : kAll) {
    for (Combiner c : {Combiner::sum, Combiner::prod, Combiner::max, Combiner::min, Combiner::any,
                       Combiner::all}) {
      const bool bits = t == DType::uint8 || t == DType::bool_;
      if ((c == Combiner::any || c == Combiner::all) != bits) continue;
      for (unsigned mask = 0; mask < 8; ++mask) {
        if (c == Combiner::prod && !is_floating(t)) continue;
        check_reduce(t, c, {4, 131, 19}, {0, 1, 2}, mask);
        check_reduce(t, c, {3, 5, 21}, {2, 0, 1}, mask);
      }
      check_reduce(t, c, {3, 1, 5}, {0, 1, 2}, 5);
    }
  }
  check_reduce(DType::float32, Combiner::sum, {2, 70001}, {0, 1}, 2);
  check_reduce(DType::float32, Combiner::sum, {70001, 2}, {0, 1}, 1);
}

TEST_CASE("reduce: long sums stay accurate, nothing gives the identity, NaN wins") {
  for (const Sizes& sizes : {Sizes{1 << 20, 1}, Sizes{1 << 20, 2}}) {
    Box in(DType::float32, sizes), out(DType::float32, {1, sizes[1]}, {0, 1});
    each(sizes, [&](const Sizes& i) { in.set(i, 0.1f); });
    run_kernel(KernelKind::reduce, {}, {&in}, {&out});
    CHECK(std::abs(out.get({0, 0}) / (double(0.1f) * (1 << 20)) - 1) < 1e-6);
  }
  Box none(DType::float32, {3, 0}), three(DType::float32, {3, 1}, {1, 0});
  Step step;
  step.combiner = Combiner::max;
  run_kernel(KernelKind::reduce, step, {&none}, {&three});
  CHECK(three.get({1, 0}) == -INFINITY);
  Box in(DType::float32, {3, 40});
  fill_random(in, 6);
  in.set({1, 17}, NAN);
  run_kernel(KernelKind::reduce, step, {&in}, {&three});
  CHECK(std::isnan(three.get({1, 0})));
  CHECK_FALSE(std::isnan(three.get({2, 0})));
}

struct IndexCase {
  OutOfRange rule;
  int64_t first, size, n;
};

TEST_CASE("gather and scatter_add follow the rules for indices that are not here") {
  const int64_t rows = 4, columns = 6, width = 5;
  for (const IndexCase& test : {IndexCase{OutOfRange::zero, 0, 8, 8},
                                {OutOfRange::zero, 3, 4, 8},
                                {OutOfRange::clamp, 3, 5, 8},
                                {OutOfRange::drop, 0, 3, 8}}) {
    for (DType t : kNumbers) {
      for (DType index : {DType::int32, DType::int64}) {
        for (bool width_last : {true, false}) {
          Box indices(index, {rows, columns, width}, {columns, 1, 0});
          each({rows, columns, 1},
               [&](const Sizes& i) { indices.set(i, double((i[0] * 7 + i[1] * 3) % 11) - 1); });
          auto local = [&](const Sizes& i) {
            int64_t row = static_cast<int64_t>(indices.get(i));
            if (test.rule == OutOfRange::clamp) row = std::clamp<int64_t>(row, 0, test.n - 1);
            if (row < 0 || row >= test.n) return int64_t{-1};
            row -= test.first;
            return row >= 0 && row < test.size ? row : -1;
          };
          Step step;
          step.spec = IndexedSpec{{0, 0, width_last ? 1 : test.size},
                                  width_last ? width : int64_t{1},
                                  test.size,
                                  test.rule};
          step.exprs = {number(test.first), number(test.n)};
          Box table(t, {test.size, width}, width_last ? Sizes{width, 1} : Sizes{1, test.size});
          fill_random(table, 7);
          Box out(t, {rows, columns, width});
          CHECK_FALSE(run_kernel(KernelKind::gather, step, {&table, &indices}, {&out}).set);
          each(out.sizes, [&](const Sizes& i) {
            const int64_t row = local(i);
            if (out.get(i) != (row < 0 ? 0 : table.get({row, i[2]}))) FAIL("gather");
          });
          Box sums(t, {test.size, width}, table.strides);
          std::vector<double> want(sums.memory.size(), 0);
          each(out.sizes, [&](const Sizes& i) {
            if (local(i) >= 0) want[sums.offset({local(i), i[2]})] += out.get(i);
          });
          each(sums.sizes, [&](const Sizes& i) { sums.set(i, 9); });
          run_kernel(KernelKind::scatter_add, step, {&indices, &out}, {&sums});
          each(sums.sizes, [&](const Sizes& i) {
            if (!close(sums.get(i), want[sums.offset(i)], t, 1))
              FAIL("scatter_add " << to_string(t));
          });
        }
      }
    }
  }
}

TEST_CASE("an index out of range is reported with its place") {
  Box table(DType::float32, {64, 3}), indices(DType::int32, {4, 6, 3}, {6, 1, 0}),
      out(DType::float32, {4, 6, 3});
  fill_random(table, 8);
  indices.set({2, 5, 0}, 70);
  indices.set({3, 1, 0}, -1);
  Step step;
  step.spec = IndexedSpec{{0, 0, 1}, 3, 64};
  step.exprs = {number(0), number(64)};
  CHECK(run_kernel(KernelKind::gather, step, {&table, &indices}, {&out}).message ==
        "index 70 at [2, 5] is outside [0, 64); mend the indices, or give an OutOfRange");
  CHECK(out.get({2, 5, 1}) == 0);
  CHECK(run_kernel(KernelKind::scatter_add, step, {&indices, &out}, {&table}).message ==
        "index 70 at [2, 5] is outside [0, 64); mend the indices, or give an OutOfRange");
}

TEST_CASE("cumsum runs along any dim, both ways, with or without its own element") {
  const Sizes sizes = {7, 300, 3};
  for (DType t : kNumbers) {
    for (int64_t dim = 0; dim < 3; ++dim) {
      for (int mode = 0; mode < 4; ++mode) {
        Box in(t, sizes), out(t, sizes, permuted_strides(sizes, {2, 0, 1}));
        fill_random(in, 9);
        Step step;
        step.spec = ScanSpec{dim, (mode & 1) != 0, (mode >> 1) != 0};
        run_kernel(KernelKind::cumsum, step, {&in}, {&out});
        each(sizes, [&](const Sizes& i) {
          double want = 0;
          Sizes j = i;
          for (j[dim] = 0; j[dim] < sizes[dim]; ++j[dim]) {
            const bool before = (mode >> 1) != 0 ? j[dim] > i[dim] : j[dim] < i[dim];
            if (before || (j[dim] == i[dim] && (mode & 1) == 0)) want += in.get(j);
          }
          if (!close(out.get(i), want, t, 1))
            FAIL("cumsum " << out.get(i) << " instead of " << want);
        });
      }
    }
  }
}

TEST_CASE("arg_reduce and top_k: ties go to the lowest index, NaN is extreme") {
  const Sizes sizes = {6, 40, 5};
  for (DType t : kNumbers) {
    for (int64_t dim = 0; dim < 3; ++dim) {
      Box in(t, sizes, permuted_strides(sizes, {1, 0, 2}));
      fill_random(in, 10);
      if (is_floating(t)) in.set({2, 3, 4}, NAN);
      Sizes one = sizes, few = sizes;
      one[dim] = 1;
      few[dim] = 4;
      Step step;
      step.spec = ArgReduceSpec{dim};
      step.exprs = {number(100)};
      Box top(t, few), positions(DType::int32, few);
      run_kernel(KernelKind::top_k, step, {&in}, {&top, &positions});
      for (Combiner c : {Combiner::max, Combiner::min}) {
        Box values(t, one), at(DType::int64, one);
        step.combiner = c;
        run_kernel(KernelKind::arg_reduce, step, {&in}, {&values, &at});
        each(one, [&](const Sizes& i) {
          std::vector<std::pair<double, int64_t>> line;  // key that ascends, index
          Sizes j = i;
          for (j[dim] = 0; j[dim] < sizes[dim]; ++j[dim]) {
            const double x = in.get(j);
            line.push_back({std::isnan(x) ? -INFINITY : c == Combiner::max ? -x : x, j[dim]});
          }
          std::sort(line.begin(), line.end());
          if (at.get(i) != 100 + line[0].second) FAIL("arg_reduce " << at.get(i));
          j[dim] = line[0].second;
          if (!close(values.get(i), in.get(j), DType::int32, 0)) FAIL("arg_reduce value");
          for (int64_t r = 0; r < 4 && c == Combiner::max; ++r) {
            Sizes k = i, from = i;
            k[dim] = r;
            from[dim] = line[r].second;
            if (positions.get(k) != 100 + line[r].second) FAIL("top_k index");
            if (!close(top.get(k), in.get(from), DType::int32, 0)) FAIL("top_k value");
          }
        });
      }
    }
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
