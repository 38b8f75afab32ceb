// Rows of the loops.
#include "ops/op_cases.h"
#include "tessera/loops.h"

namespace tessera::test {

namespace {

using Tensors = OpCase::Tensors;

const Dim t("t", 4), a("a", 5), b("b", 6), c("c", 3);

OpCase row(const std::string& name, std::vector<CaseInput> in, std::vector<std::string> splits,
           const OpCase::Build& build) {
  OpCase result;
  result.name = name;
  result.in = std::move(in);
  result.splits = std::move(splits);
  result.build = build;
  return result;
}

/// x <- tanh(x w_t), with a matrix for each iteration.
Tensors products(Graph& g, const Tensors& in) {
  const IterationResults r = scan(g, t, {in[0]}, {in[1]}, [](const Iteration& iteration) {
    Tensor y = tanh(rename(
        einsum({rename(iteration.carries[0], "b", "k"), iteration.slices[0]}, {a, b}), "b", "b2"));
    y = rename(y, "b2", "b");
    return IterationResults{{y}, {reduce_sum(y, "a")}, {reduce_sum(square(y), "b")}};
  });
  return {r.carries[0], r.stacked[0], r.sums[0]};
}

/// A recurrence within a recurrence.
Tensors nested(Graph& g, const Tensors& in) {
  const IterationResults r = scan(g, t, {in[0]}, {in[1]}, [&](const Iteration& outer) {
    const IterationResults inner =
        scan(g, c, {outer.carries[0]}, {in[2]}, [&](const Iteration& iteration) {
          Tensor y = sin(iteration.carries[0] + outer.slices[0] * iteration.slices[0]);
          return IterationResults{{y}, {reduce_sum(y, "b")}};
        });
    return IterationResults{{inner.carries[0] * 0.9}, {inner.stacked[0]}};
  });
  return {r.carries[0], r.stacked[0]};
}

Tensors until(Graph& g, const Tensors& in) {
  const IterationResults r = while_loop(
      [](const Tensors& carries) { return sum_all(carries[0]) < 60.0; },
      [&](const Iteration& iteration) {
        Tensor next = iteration.carries[0] * 1.5 + square(in[1]);
        return IterationResults{{next}, {reduce_sum(next, "a")}, {reduce_max(next, "b")}};
      },
      {in[0]}, 6);
  (void)g;
  return {r.carries[0], r.stacked[0], r.sums[0]};
}

Tensors branches(Graph& g, const Tensors& in) {
  (void)g;
  Tensors results;
  for (const double limit : {-1e3, 1e3}) {
    const Tensors made = cond(
        sum_all(in[0]) < limit, [&] { return Tensors{exp(in[0]) * in[1]}; },
        [&] {
          return Tensors{einsum({in[0], square(in[1])}, {a, b}) + in[1]};
        });
    results.push_back(made[0]);
  }
  return results;
}

}  // namespace

std::vector<OpCase> loop_cases() {
  OpCase of_branches = row("cond", {real("x", {a, b}), real("w", {b})}, {"a", "b"}, branches);
  of_branches.reads_order = true;  // one branch keeps that of x, the other says its own
  return {row("scan", {real("x", {a, b}), real("w", {t, Dim("k", 6), b})}, {"a", "b", "k", "t"},
              products),
          row("scan_in_scan", {real("x", {a, b}), real("u", {t, a}), real("v", {c, b})},
              {"a", "b", "c", "t"}, nested),
          row("while_loop", {positive("x", {a, b}), real("w", {b})}, {"a", "b"}, until),
          of_branches};
}

}  // namespace tessera::test
