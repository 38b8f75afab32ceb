// The pointwise ops of the reference: one formula each, from the C++ library.
#include <algorithm>
#include <cmath>
#include <functional>
#include <unordered_map>

#include "base/fail.h"
#include "support/reference.h"
#include "tessera/op.h"

namespace tessera::test {

namespace {

using Formula = std::function<double(const double*)>;

double gelu_inner(double x) { return std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }

double gelu_slope(double x) {
  const double t = std::tanh(gelu_inner(x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

/// Newton's method on erf.
double inverse_erf(double y) {
  if (std::abs(y) >= 1) return y == 1 ? INFINITY : y == -1 ? -INFINITY : NAN;
  const double a = 0.147, l = std::log(1 - y * y), b = 2 / (M_PI * a) + l / 2;
  double x = std::copysign(std::sqrt(std::sqrt(b * b - l / a) - b), y);
  for (int i = 0; i < 6; ++i) x -= (std::erf(x) - y) / (2 / std::sqrt(M_PI) * std::exp(-x * x));
  return x;
}

double modulo(double a, double b) {
  const double r = std::fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

const std::unordered_map<std::string_view, Formula>& formulas() {
#define F(expr) [](const double* x) -> double { return expr; }
  static const std::unordered_map<std::string_view, Formula> table = {
      {"identity", F(x[0])},
      {"stop_gradient", F(x[0])},
      {"print", F(x[0])},
      {"check_finite", F(x[0])},
      {"ragged", F(x[0])},
      {"broadcast", F(x[0])},
      {"transpose", F(x[0])},
      {"cast", F(x[0])},
      {"neg", F(-x[0])},
      {"abs", F(std::abs(x[0]))},
      {"sign", F(x[0] > 0   ? 1
                 : x[0] < 0 ? -1
                            : 0)},
      {"exp", F(std::exp(x[0]))},
      {"log", F(std::log(x[0]))},
      {"log1p", F(std::log1p(x[0]))},
      {"sqrt", F(std::sqrt(x[0]))},
      {"rsqrt", F(1 / std::sqrt(x[0]))},
      {"reciprocal", F(1 / x[0])},
      {"square", F(x[0] * x[0])},
      {"sin", F(std::sin(x[0]))},
      {"cos", F(std::cos(x[0]))},
      {"tanh", F(std::tanh(x[0]))},
      {"sigmoid", F(sigmoid(x[0]))},
      {"softplus", F(std::max(x[0], 0.0) + std::log1p(std::exp(-std::abs(x[0]))))},
      {"relu", F(std::max(x[0], 0.0))},
      {"gelu", F(0.5 * x[0] * (1 + std::tanh(gelu_inner(x[0]))))},
      {"gelu_grad", F(gelu_slope(x[0]))},
      {"silu", F(x[0] * sigmoid(x[0]))},
      {"erf", F(std::erf(x[0]))},
      {"erf_inv", F(inverse_erf(x[0]))},
      {"floor", F(std::floor(x[0]))},
      {"ceil", F(std::ceil(x[0]))},
      {"round", F(std::nearbyint(x[0]))},
      {"logical_not", F(x[0] == 0)},
      {"is_finite", F(std::isfinite(x[0]))},
      {"add", F(x[0] + x[1])},
      {"sub", F(x[0] - x[1])},
      {"mul", F(x[0] * x[1])},
      {"div", F(x[0] / x[1])},
      {"floor_div", F(std::floor(x[0] / x[1]))},
      {"mod", F(modulo(x[0], x[1]))},
      {"pow", F(std::pow(x[0], x[1]))},
      {"minimum", F(std::min(x[0], x[1]))},
      {"maximum", F(std::max(x[0], x[1]))},
      {"less", F(x[0] < x[1])},
      {"less_equal", F(x[0] <= x[1])},
      {"greater", F(x[0] > x[1])},
      {"greater_equal", F(x[0] >= x[1])},
      {"equal", F(x[0] == x[1])},
      {"not_equal", F(x[0] != x[1])},
      {"logical_and", F(x[0] != 0 && x[1] != 0)},
      {"logical_or", F(x[0] != 0 || x[1] != 0)},
      {"where", F(x[0] != 0 ? x[1] : x[2])},
  };
#undef F
  return table;
}

/// Ops that jump, with the number of operands whose difference (or, for one operand, whose value or
/// distance from an integer) decides where.
int jump_operands(std::string_view name) {
  static const std::unordered_map<std::string_view, int> table = {
      {"sign", 1},  {"floor", 1},      {"ceil", 1},      {"round", 1},
      {"less", 2},  {"less_equal", 2}, {"greater", 2},   {"greater_equal", 2},
      {"equal", 2}, {"not_equal", 2},  {"floor_div", 2}, {"mod", 2}};
  auto it = table.find(name);
  return it == table.end() ? 0 : it->second;
}

}  // namespace

bool Reference::is_close(double a, double b) const {
  const double scale = std::max({std::abs(a), std::abs(b), 1e-3});
  return (a != b || tie_ > 1e-3) && std::abs(a - b) < tie_ * scale;
}

Whole Reference::pointwise(const Node& node, const std::vector<Whole>& in, const Value& out) {
  auto it = formulas().find(node.op->name);
  TESSERA_CHECK(it != formulas().end(), "the reference has no formula for the op '{}'",
                node.op->name);
  Whole result = empty(out.shape);
  std::vector<std::vector<int64_t>> strides;
  for (const Whole& x : in) strides.push_back(x.strides_over(result.dims));
  const int jump = jump_operands(node.op->name);
  const DType dtype = graph_.value(node.in[0]).dtype;
  int64_t i = 0;
  each_index(result.sizes, [&](const std::vector<int64_t>& index) {
    double x[3] = {};
    for (size_t k = 0; k < in.size(); ++k) x[k] = in[k].data[dot(index, strides[k])];
    if (jump > 0 && is_floating(dtype))
      near_tie_ = near_tie_ || is_close(x[0], jump == 2 ? x[1] : std::nearbyint(x[0]));
    const double y = it->second(x);
    const bool exact = is_floating(out.dtype) && node.op->name != "cast";
    result.data[i++] = exact ? y : as_dtype(y, out.dtype);
  });
  return result;
}

}  // namespace tessera::test
