// Rows of the ops that move elements, of sources, and of preferences.
#include "ops/op_cases.h"

namespace tessera::test {

namespace {

using Tensors = OpCase::Tensors;

const Dim a("a", 5), b("b", 6), c("c", 4), n("n", 7);

OpCase reshapes(const std::string& name, Shape from, Shape to, std::vector<std::string> splits) {
  OpCase row{name, {real("x", from)}, std::move(splits), [to](Graph&, const Tensors& x) -> Tensors {
               return {reshape(exp(x[0]), to), sin(reshape(x[0], to))};
             }};
  row.reads_order = true;
  return row;
}

void add_moves(std::vector<OpCase>& rows) {
  rows.push_back({"transpose",
                  {real("x", {a, b, c})},
                  {"a", "b", "c"},
                  [](Graph&, const Tensors& x) -> Tensors {
                    return {transpose(x[0], {c, a, b}), transpose(x[0], {b, a, c})};
                  }});
  rows.push_back(
      {"broadcast", {real("x", {b})}, {"a", "b", "c"}, [](Graph&, const Tensors& x) -> Tensors {
         return {broadcast(x[0], {a, b, c}), broadcast(exp(x[0]), {b, a})};
       }});
  rows.push_back(reshapes("reshape_merge", {b, c}, {Dim("m", 24)}, {"b", "c", "m"}));
  rows.push_back(
      reshapes("reshape_merge_uneven", {a, b, n}, {a, Dim("m", 42)}, {"a", "b", "n", "m"}));
  rows.push_back(reshapes("reshape_split", {a, Dim("m", 24)}, {a, b, c}, {"a", "b", "c", "m"}));
  rows.push_back(
      reshapes("reshape_4x6_to_6x4", {c, b}, {Dim("p", 6), Dim("q", 4)}, {"b", "c", "p", "q"}));
  rows.push_back(
      reshapes("reshape_2x6_to_4x3", {Dim("p", 2), b}, {c, Dim("q", 3)}, {"p", "b", "c", "q"}));
  rows.push_back(reshapes("reshape_crossing", {Dim("p", 4), Dim("q", 6), a},
                          {Dim("r", 2), Dim("s", 12), a}, {"p", "q", "r", "s"}));
  rows.push_back(reshapes("reshape_ones", {Dim("p", 1), a}, {a, Dim("q", 1)}, {"a", "p", "q"}));
  rows.push_back(reshapes("reshape_to_scalar", {Dim("p", 1)}, {}, {"p"}));
  rows.push_back(
      {"rename", {real("x", {a, b})}, {"a", "b", "z"}, [](Graph&, const Tensors& x) -> Tensors {
         return {rename(exp(x[0]), "a", "z"), sum_all(exp(rename(x[0], "a", "z")))};
       }});
  rows.push_back({"rename_outer",
                  {real("x", {a, b})},
                  {"a", "b", "z"},
                  [](Graph&, const Tensors& x) -> Tensors {
                    return {einsum({x[0], rename(x[0], "a", "z")}, {a, Dim("z", 5)})};
                  }});
  rows.push_back(
      {"prefer", {real("x", {a, b, c})}, {"a", "b", "c"}, [](Graph&, const Tensors& x) -> Tensors {
         return {exp(x[0].prefer("a")), sin(x[0].prefer("c")) * 2.0};
       }});
}

OpCase drawn(const std::string& name, std::function<Tensor(Graph&, const Shape&)> draw) {
  OpCase row{
      name, {real("x", {a, b})}, {"a", "b", "c"}, [draw](Graph& g, const Tensors& x) -> Tensors {
        return {draw(g, {a, b, c}), mul(x[0], cast(draw(g, {b, a}), x[0].dtype()))};
      }};
  row.random = true;
  return row;
}

void add_sources(std::vector<OpCase>& rows) {
  rows.push_back(drawn("random_uniform",
                       [](Graph& g, const Shape& s) { return random_uniform(g, s, -1, 2); }));
  rows.push_back(
      drawn("random_normal", [](Graph& g, const Shape& s) { return random_normal(g, s, 1, 2); }));
  rows.push_back(drawn("truncated_normal", [](Graph& g, const Shape& s) {
    return truncated_normal(g, s, 1, 2, DType::float64);
  }));
  OpCase drops{"dropout", {real("x", {a, b})}, {"a", "b"}, [](Graph&, const Tensors& x) -> Tensors {
                 return {dropout(exp(x[0]), 0.4), dropout(x[0], 0.4)};
               }};
  drops.random = true;
  rows.push_back(drops);
  rows.push_back(
      {"iota", {real("x", {a, b})}, {"a", "b", "n"}, [](Graph& g, const Tensors& x) -> Tensors {
         return {iota(g, n), x[0] * iota(g, b, x[0].dtype()), iota(g, a, DType::int64)};
       }});
  rows.push_back(
      {"constant", {real("x", {a, b})}, {"a", "b", "n"}, [](Graph& g, const Tensors& x) -> Tensors {
         return {constant(g, 2.5, DType::float32, {n, a}), x[0] + constant(g, 3, x[0].dtype(), {b}),
                 constant(g, 7, DType::int32), constant(g, 1, DType::bool_, {a})};
       }});
}

void add_bounded(std::vector<OpCase>& rows) {
  const Dim batch = Dim::bounded("a", 6);
  OpCase loss{
      "bounded_loss",
      {real("x", {batch, b}), parameter(real("w", {b, n})), integers("i", {batch}, 0, 6)},
      {"a", "b", "n"},
      [batch](Graph&, const Tensors& x) -> Tensors {
        Tensor logits = einsum({exp(x[0]), x[1]}, {batch, n});
        return {mean_all(cross_entropy(logits, x[2], "n")), reduce_max(softmax(logits, "a"), "n")};
      }};
  loss.sizes = {{"a", 3}};
  rows.push_back(loss);
  const Dim memory = Dim::bounded("memory_length", 6), length("length", 4), d_head("d_head", 3);
  OpCase attends{
      "bounded_attention",
      {real("q", {length, d_head}), real("k", {memory, d_head}), real("v", {memory, d_head})},
      {"length", "memory_length", "d_head"},
      [](Graph&, const Tensors& x) -> Tensors { return {attention(x[0], exp(x[1]), cos(x[2]))}; }};
  attends.sizes = {{"memory_length", 4}};
  rows.push_back(attends);
  OpCase sums{"bounded_sums",
              {real("x", {b, batch}), real("y", {batch, n}), integers("i", {batch}, 0, 6)},
              {"a", "b", "n"},
              [](Graph&, const Tensors& x) -> Tensors {
                return {einsum({cos(x[0]), exp(x[1])}, {b, n}),
                        scatter_add(x[2], cos(x[0]), {b, n}, "n"), reduce_logsumexp(x[0], "a"),
                        reduce_prod(cos(x[0]), "a"), gather(x[1], x[2], "n")};
              }};
  sums.sizes = {{"a", 1}};
  rows.push_back(sums);
}

}  // namespace

std::vector<OpCase> shape_cases() {
  std::vector<OpCase> rows;
  add_moves(rows);
  add_sources(rows);
  add_bounded(rows);
  return rows;
}

}  // namespace tessera::test
