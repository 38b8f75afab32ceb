// Rows of the pointwise ops.
#include <cmath>

#include "ops/op_cases.h"

namespace tessera::test {

namespace {

using Tensors = OpCase::Tensors;
using Unary = Tensor (*)(Tensor, Loc);
using Binary = Tensor (*)(Tensor, Tensor, Loc);

const Dim a("a", 5), b("b", 6), c("c", 4);

OpCase unary(const std::string& name, Unary op, double lo, double hi, bool differentiable = true) {
  CaseInput x = real("x", {a, b}, lo, hi);
  x.differentiable = differentiable;
  return {name, {x}, {"a", "b"}, [op](Graph&, const Tensors& in) -> Tensors {
            return {op(in[0], Loc::current())};
          }};
}

/// A formula of one operand, checked against `f`.
OpCase formula(const std::string& name, std::function<Tensor(Tensor)> op, double (*f)(double),
               double lo, double hi) {
  OpCase row{
      name, {real("x", {a, b}, lo, hi)}, {"a", "b"}, [op](Graph&, const Tensors& in) -> Tensors {
        return {op(in[0])};
      }};
  row.expect = [f](const std::vector<Whole>& in) {
    Whole y = in[0];
    for (double& v : y.data) v = f(v);
    return y;
  };
  return row;
}

OpCase binary(const std::string& name, Binary op, CaseInput x, CaseInput y,
              bool has_gradient = true) {
  OpCase row{
      name,
      {std::move(x), std::move(y)},
      {"a", "b", "c"},
      [op](Graph&, const Tensors& in) -> Tensors { return {op(in[0], in[1], Loc::current())}; }};
  row.has_gradient = has_gradient;
  return row;
}

void add_unary(std::vector<OpCase>& rows) {
  struct Range {
    const char* name;
    Unary op;
    double lo, hi;
  };
  const Range ranges[] = {{"neg", neg, -2, 2},
                          {"abs", abs, -2, 2},
                          {"sign", sign, -2, 2},
                          {"exp", exp, -2, 2},
                          {"log", log, 0.2, 3},
                          {"log1p", log1p, -0.5, 2},
                          {"sqrt", sqrt, 0.2, 3},
                          {"rsqrt", rsqrt, 0.2, 3},
                          {"reciprocal", reciprocal, 0.5, 2},
                          {"square", square, -2, 2},
                          {"sin", sin, -4, 4},
                          {"cos", cos, -4, 4},
                          {"tanh", tanh, -2, 2},
                          {"sigmoid", sigmoid, -4, 4},
                          {"softplus", softplus, -4, 4},
                          {"relu", relu, -2, 2},
                          {"gelu", gelu, -3, 3},
                          {"silu", silu, -3, 3},
                          {"erf", erf, -2, 2},
                          {"erf_inv", erf_inv, -0.9, 0.9},
                          {"floor", floor, -3, 3},
                          {"ceil", ceil, -3, 3},
                          {"round", round, -3, 3},
                          {"identity", identity, -1, 1}};
  for (const Range& r : ranges) rows.push_back(unary(r.name, r.op, r.lo, r.hi));
  rows.push_back({"print_check_finite",
                  {real("x", {a, b})},
                  {"a", "b"},
                  [](Graph&, const Tensors& in) -> Tensors {
                    Tensor y = check_finite(print(in[0] * in[0], "square"), "square");
                    return {y, check_finite(sum_all(y))};
                  }});
  rows.push_back(unary("gelu_grad", gelu_grad, -3, 3));
  rows.push_back(unary("stop_gradient", stop_gradient, -3, 3, false));
  rows.push_back(
      {"logical_not", {flags("x", {a, b})}, {"a", "b"}, [](Graph&, const Tensors& in) -> Tensors {
         return {logical_not(in[0])};
       }});
  rows.push_back({"is_finite",
                  {constant_of(integers("x", {a, b}, -1, 1, DType::float32)),
                   constant_of(integers("y", {b}, 0, 1, DType::float32))},
                  {"a", "b"},
                  [](Graph&, const Tensors& in) -> Tensors {
                    return {is_finite(in[0] / in[1]), is_nan(in[0] / in[1]), is_inf(in[0] / in[1])};
                  }});
  rows.push_back({"neg_int",
                  {integers("x", {a, b}, -5, 5)},
                  {"a", "b"},
                  [](Graph&, const Tensors& in) -> Tensors {
                    return {neg(in[0]), abs(in[0]), square(in[0]), sign(in[0]), relu(in[0])};
                  }});
}

void add_formulas(std::vector<OpCase>& rows) {
  rows.push_back(formula(
      "leaky_relu", [](Tensor x) { return leaky_relu(x, 0.1); },
      [](double x) { return x > 0 ? x : 0.1 * x; }, -2, 2));
  rows.push_back(formula(
      "elu", [](Tensor x) { return elu(x); }, [](double x) { return x > 0 ? x : std::expm1(x); },
      -2, 2));
  rows.push_back(formula(
      "selu", [](Tensor x) { return selu(x); },
      [](double x) {
        return 1.0507009873554805 * (x > 0 ? x : 1.6732632423543772 * std::expm1(x));
      },
      -2, 2));
  rows.push_back(formula(
      "clip", [](Tensor x) { return clip(x, -0.5, 0.75); },
      [](double x) { return x < -0.5   ? -0.5
                            : x > 0.75 ? 0.75
                                       : x; }, -2, 2));
  rows.push_back(formula(
      "sigmoid_of_cos", [](Tensor x) { return sigmoid(cos(x) * 2.0 - x); },
      [](double x) { return 1 / (1 + std::exp(x - 2 * std::cos(x))); }, -2, 2));
}

void add_broadcasts(std::vector<OpCase>& rows) {
  const struct {
    const char* name;
    Binary op;
  } ops[] = {{"add", add}, {"sub", sub}, {"mul", mul}, {"div", div}};
  for (const auto& [name, op] : ops) {
    const std::string n = name;
    rows.push_back(binary(n, op, real("x", {a, b}), positive("y", {a, b})));
    rows.push_back(binary(n + "_second_smaller", op, real("x", {a, b}), positive("y", {b})));
    rows.push_back(binary(n + "_first_smaller", op, real("x", {a}), positive("y", {a, b})));
    rows.push_back(binary(n + "_permuted", op, real("x", {a, b}), positive("y", {b, a})));
    rows.push_back(binary(n + "_outer", op, real("x", {a, c}), positive("y", {b, c})));
    // A block of the interpreter holds some of the rows, the last one fewer than the others.
    const Dim row("a", 5), column("b", 192);
    rows.push_back(binary(n + "_blocks", op, real("x", {row, column}), positive("y", {column})));
    rows.push_back(binary(n + "_scalar", op, real("x", {}), positive("y", {a, b})));
  }
  rows.push_back(
      {"mul_itself", {real("x", {a, b})}, {"a", "b"}, [](Graph&, const Tensors& in) -> Tensors {
         return {mul(in[0], in[0]), add(in[0], in[0])};
       }});
}

void add_binary(std::vector<OpCase>& rows) {
  rows.push_back(binary("pow", pow, positive("x", {a, b}), real("y", {a, b}, -2, 2)));
  rows.push_back(binary("pow_broadcast", pow, positive("x", {b}), real("y", {a, b}, -2, 2)));
  rows.push_back(binary("minimum", minimum, real("x", {a, b}), real("y", {b})));
  rows.push_back(binary("maximum", maximum, real("x", {a}), real("y", {b, a})));
  const CaseInput tied = integers("x", {a, b}, 0, 2, DType::float32),
                  other = integers("y", {b, a}, 0, 2, DType::float32);
  rows.push_back(binary("maximum_ties", maximum, tied, other, false));
  rows.push_back(binary("minimum_ties", minimum, tied, other, false));
  rows.push_back(
      binary("floor_div", floor_div, real("x", {a, b}, -4, 4), constant_of(positive("y", {b}))));
  rows.push_back(binary("mod", mod, constant_of(real("x", {a, b}, -4, 4)),
                        constant_of(positive("y", {b, a}))));
  // x / y stays between 2.1 and 2.9: the floor does not move.
  rows.push_back(binary("mod_gradient", mod, real("x", {a, b}, 2.1, 2.8), real("y", {b}, 0.97, 1)));
  rows.push_back(
      binary("floor_div_int", floor_div, integers("x", {a, b}, -9, 9), integers("y", {b}, 1, 4)));
  rows.push_back(binary("mod_int", mod, integers("x", {a, b}, -9, 9), integers("y", {b}, -4, -1)));
  rows.push_back(binary("div_int", div, integers("x", {a, b}, -9, 9, DType::int64),
                        integers("y", {a}, 1, 4, DType::int64)));
  const struct {
    const char* name;
    Binary op;
  } tests[] = {{"less", less},       {"less_equal", less_equal},
               {"greater", greater}, {"greater_equal", greater_equal},
               {"equal", equal},     {"not_equal", not_equal}};
  for (const auto& [name, op] : tests) {
    rows.push_back(binary(name, op, integers("x", {a, b}, 0, 2), integers("y", {b, a}, 0, 2)));
    rows.push_back(binary(std::string(name) + "_real", op, constant_of(tied),
                          constant_of(real("y", {b}, 0, 2))));
  }
  rows.push_back(binary("logical_and", logical_and, flags("x", {a, b}), flags("y", {b})));
  rows.push_back(binary("logical_xor", logical_xor, flags("x", {a, b}), flags("y", {b})));
  rows.push_back(binary("logical_or", logical_or, flags("x", {b}), flags("y", {a, b})));
}

void add_where(std::vector<OpCase>& rows) {
  const auto build = [](Graph&, const Tensors& in) -> Tensors {
    return {where(in[0], in[1], in[2])};
  };
  rows.push_back(
      {"where", {flags("f", {a, b}), real("x", {a, b}), real("y", {a, b})}, {"a", "b"}, build});
  rows.push_back(
      {"where_broadcast", {flags("f", {a}), real("x", {a, b}), real("y", {b})}, {"a", "b"}, build});
  rows.push_back(
      {"where_outer", {flags("f", {a}), real("x", {b}), real("y", {c})}, {"a", "b", "c"}, build});
  rows.push_back({"where_leaks_nothing",
                  {real("x", {a, b})},
                  {"a", "b"},
                  [](Graph& g, const Tensors& in) -> Tensors {
                    return {where(in[0] > 0.0, log(in[0]), constant(g, 0, in[0].dtype()))};
                  }});
}

void add_casts(std::vector<OpCase>& rows) {
  rows.push_back(
      {"cast_from_int",
       {integers("x", {a, b}, -5, 5)},
       {"a", "b"},
       [](Graph&, const Tensors& in) -> Tensors {
         return {cast(in[0], DType::float64), cast(in[0], DType::int64), cast(in[0], DType::bool_)};
       }});
  rows.push_back(
      {"cast_to_int",
       {constant_of(real("x", {a, b}, -5, 5))},
       {"a", "b"},
       [](Graph&, const Tensors& in) -> Tensors {
         return {cast(in[0], DType::int32), cast(in[0], DType::int64), cast(in[0], DType::bool_)};
       }});
  for (const DType type : {DType::bfloat16, DType::float16}) {
    OpCase narrow{std::string("cast_to_") + to_string(type),
                  {real("x", {a, b})},
                  {"a", "b"},
                  [type](Graph&, const Tensors& in) -> Tensors {
                    return {cast(cast(cast(in[0], DType::float32), type), DType::float32)};
                  }};
    narrow.has_gradient = false;
    rows.push_back(narrow);
  }
  OpCase float32{
      "cast_to_float32", {real("x", {a, b})}, {"a", "b"}, [](Graph&, const Tensors& in) -> Tensors {
        return {cast(cast(in[0], DType::float32), in[0].dtype())};
      }};
  float32.has_gradient = false;
  rows.push_back(float32);
}

}  // namespace

std::vector<OpCase> pointwise_cases() {
  std::vector<OpCase> rows;
  add_unary(rows);
  add_formulas(rows);
  add_broadcasts(rows);
  add_binary(rows);
  add_where(rows);
  add_casts(rows);
  return rows;
}

}  // namespace tessera::test
