// Rows of the indexed ops.
#include "ops/op_cases.h"
#include "tessera/experts.h"
#include "tessera/ragged.h"

namespace tessera::test {

namespace {

using Tensors = OpCase::Tensors;

const Dim a("a", 5), b("b", 6), c("c", 4), n("n", 7);

OpCase gathers(const std::string& name, CaseInput table, CaseInput indices,
               OutOfRange rule = OutOfRange::error) {
  return {name,
          {std::move(table), std::move(indices)},
          {"a", "b", "c", "n"},
          [rule](Graph&, const Tensors& x) -> Tensors { return {gather(x[0], x[1], "n", rule)}; }};
}

OpCase scatters(const std::string& name, CaseInput indices, CaseInput updates, Shape out,
                OutOfRange rule = OutOfRange::error) {
  return {name,
          {std::move(indices), std::move(updates)},
          {"a", "b", "c", "n"},
          [rule, out](Graph&, const Tensors& x) -> Tensors {
            return {scatter_add(x[0], x[1], out, "n", rule)};
          }};
}

OpCase one_hots(const std::string& name, CaseInput indices, double on, double off, DType dtype) {
  OpCase row{name, {std::move(indices)}, {"a", "b", "n"}, [=](Graph&, const Tensors& x) -> Tensors {
               return {one_hot(x[0], n, on, off, dtype)};
             }};
  row.expect = [=](const std::vector<Whole>& in) {
    Whole y({"a", "b", "n"}, {5, 6, 7}, off);
    for (int64_t i = 0; i < in[0].elements(); ++i) {
      const int64_t k = static_cast<int64_t>(in[0].data[i]);
      if (k >= 0 && k < 7) y.data[i * 7 + k] = on;
    }
    return y;
  };
  return row;
}

/// Rows [a, c] of width b, and n matrices.
void add_grouped(std::vector<OpCase>& rows) {
  const Dim f("f", 4);
  const std::vector<std::string> splits = {"a", "b", "c", "f", "n"};
  rows.push_back({"grouped_dot",
                  {real("x", {a, b}), parameter(real("w", {n, b, f})), integers("i", {a, c}, -2, 8),
                   real("h", {c, a, f})},
                  splits,
                  [](Graph&, const OpCase::Tensors& x) -> OpCase::Tensors {
                    return {grouped_dot(sin(x[0]), x[1], x[2], "n", {a, c, Dim("f", 4)}),
                            grouped_dot(x[3], x[1], x[2], "n", {b, a})};
                  }});
  rows.push_back(
      {"grouped_outer",
       {real("x", {a, b}), real("h", {a, f, c}), integers("i", {c, a}, -2, 8, DType::int64)},
       splits,
       [](Graph&, const OpCase::Tensors& x) -> OpCase::Tensors {
         return {grouped_outer(x[0], cos(x[1]), x[2], "n", {n, b, Dim("f", 4)}),
                 grouped_outer(x[1], x[0], x[2], "n", {Dim("f", 4), n, b})};
       }});
  // Matrices in batches, a batch that is summed, and rows of several dims.
  const Dim h("h", 3);
  rows.push_back({"grouped_dot_of_batches",
                  {real("x", {a, h, b}), real("w", {h, b, n, c}), integers("i", {h, a}, 0, 6)},
                  {"a", "b", "c", "h", "n"},
                  [h](Graph&, const OpCase::Tensors& x) -> OpCase::Tensors {
                    return {grouped_dot(x[0], x[1], x[2], "n", {h, a, c}),
                            grouped_dot(x[0], exp(x[1]), x[2], "n", {a, c}),
                            grouped_dot(x[0], x[1], x[2], "n", {c, a, b, h})};
                  }});
}

/// Tokens, each with two of n experts; under some layouts their rows are dispatched. The second row
/// has places for all rows, so that no run is repeated.
void add_experts(std::vector<OpCase>& rows) {
  const Dim f("f", 4), k("k", 2);
  for (const Shape& tokens : {Shape{a}, Shape{a, c}}) {
    const bool two = tokens.rank() > 1;
    const Shape choices = tokens.united(Shape{k});
    rows.push_back(
        {two ? "experts_of_batches" : "experts",
         {real("x", tokens.united(Shape{b})), integers("i", choices, -1, 7), real("gates", choices),
          parameter(real("up", {n, b, f})), real("other", {n, b, f}), real("down", {n, f, b})},
         {"a", "b", "c", "f", "k", "n"},
         [two](Graph&, const Tensors& x) -> Tensors {
           Experts weights{{x[3], x[4]}, {"silu", "linear"}, x[5], "n", "k"};
           if (two) weights.dispatch_capacity = 0;
           return {experts(x[0], x[1], x[2], weights)};
         }});
  }
}

/// Blocks [n, b] of rows along c, of which k are there; under some layouts they are exchanged.
OpCase counted_rows() {
  const Dim from("from", 4), to("to", 4);
  return {"ragged",
          {real("x", {from, to, c, b}), integers("k", {from, to}, 0, 4)},
          {"from", "to", "b"},
          [](Graph& g, const Tensors& x) -> Tensors {
            const Tensor there = less(iota(g, c), x[1]);
            const auto rows = [&](Tensor t) {
              return ragged(where(there, t, zeros_like(t)), x[1], "c", 0.5);
            };
            const Tensor there_again = rows(x[0].prefer("from")).prefer("to");
            return {rows(sin(there_again)).prefer("from")};
          }};
}

}  // namespace

std::vector<OpCase> indexed_cases() {
  std::vector<OpCase> rows;
  rows.push_back(counted_rows());
  rows.push_back(gathers("gather", real("x", {n, b}), integers("i", {a, c}, 0, 6)));
  rows.push_back(
      gathers("gather_inner_dim", real("x", {b, n}), integers("i", {a}, 0, 6, DType::int64)));
  rows.push_back(gathers("gather_shared_dims", real("x", {a, n, b}), integers("i", {a, c}, 0, 6)));
  rows.push_back(gathers("gather_all_shared", real("x", {a, b, n}), integers("i", {b, a}, 0, 6)));
  rows.push_back(gathers("gather_vector", real("x", {n}), integers("i", {a, b}, 0, 6)));
  rows.push_back(gathers("gather_by_scalar", real("x", {n, b}), integers("i", {}, 3, 3)));
  rows.push_back(
      gathers("gather_zero", real("x", {n, b}), integers("i", {a, c}, -3, 9), OutOfRange::zero));
  rows.push_back(
      gathers("gather_drop", real("x", {n, b}), integers("i", {a}, -3, 9), OutOfRange::drop));
  rows.push_back(
      gathers("gather_clamp", real("x", {n, b}), integers("i", {a, c}, -3, 9), OutOfRange::clamp));
  rows.push_back(
      gathers("gather_parameter", parameter(real("x", {n, b})), integers("i", {a, c}, 0, 6)));
  rows.push_back(gathers("gather_int", integers("x", {n, b}, -9, 9), integers("i", {a}, 0, 6)));
  rows.push_back({"gather_twice",
                  {real("x", {n, b}), integers("i", {a}, 0, 6), integers("k", {a, c}, 0, 5)},
                  {"a", "b", "c", "n"},
                  [](Graph&, const Tensors& x) -> Tensors {
                    Tensor rows = exp(gather(exp(x[0]), x[1], "n"));
                    return {gather(rows, x[2], "b")};
                  }});
  rows.push_back(
      scatters("scatter_add", integers("i", {a, c}, 0, 6), real("u", {a, c, b}), {n, b}));
  rows.push_back(
      scatters("scatter_add_shared", integers("i", {a, c}, 0, 6), real("u", {a, c, b}), {b, n, a}));
  rows.push_back(scatters("scatter_add_sums", integers("i", {a}, 0, 6), real("u", {b, a, c}), {n}));
  rows.push_back(scatters("scatter_add_drop", integers("i", {a}, -3, 9), real("u", {a, b}), {n, b},
                          OutOfRange::drop));
  rows.push_back(scatters("scatter_add_zero", integers("i", {a}, -3, 9), real("u", {a, b}), {n, b},
                          OutOfRange::zero));
  rows.push_back(scatters("scatter_add_clamp", integers("i", {a}, -3, 9), real("u", {a, b}), {n, b},
                          OutOfRange::clamp));
  rows.push_back({"scatter_of_exp",
                  {integers("i", {a, c}, 0, 6), real("u", {a, c, b})},
                  {"a", "b", "c", "n"},
                  [](Graph&, const Tensors& x) -> Tensors {
                    return {log(scatter_add(x[0], exp(x[1]), {n, b}, "n") + 1.0)};
                  }});
  rows.push_back({"scatter",
                  {real("x", {b, n, a}), integers("i", {c, a}, 0, 6), real("u", {a, c, b})},
                  {"a", "b", "c", "n"},
                  [](Graph&, const Tensors& x) -> Tensors {
                    return {scatter(exp(x[0]), x[1], sin(x[2]), "n")};
                  }});
  add_grouped(rows);
  add_experts(rows);
  rows.push_back(one_hots("one_hot", integers("i", {a, b}, 0, 6), 1, 0, DType::float32));
  rows.push_back(one_hots("one_hot_on_off", integers("i", {a, b}, -2, 8, DType::int64), 0.9, -0.1,
                          DType::float64));
  rows.push_back(one_hots("one_hot_int", integers("i", {a, b}, 0, 6), 3, -1, DType::int32));
  return rows;
}

}  // namespace tessera::test
