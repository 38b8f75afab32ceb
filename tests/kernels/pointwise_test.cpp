// The pointwise kernel: every formula against the C library, every type, strides, positions, and
// the same bits under every instruction set.
#include "kernels/cpu/pointwise.h"

#include "kernels/kernels_cases.h"
#include "kernels/pointwise_cases.h"
#include "support/catch.h"

namespace tessera::test {
namespace TESSERA_FILE {

/// Distance in units of the last place of float32; subnormal results count absolutely.
double ulps(float got, double want) {
  if (std::isnan(got) || std::isnan(want)) return std::isnan(got) && std::isnan(want) ? 0 : 1e9;
  if (std::isinf(got) || std::abs(want) > 3.4028235677973366e38) {
    return got == static_cast<float>(want) ? 0 : 1e9;
  }
  int exponent = 0;
  std::frexp(want, &exponent);
  return std::abs(got - want) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

std::vector<float> samples(double low, double high) {
  std::vector<float> x;
  std::mt19937 engine(1);
  std::uniform_real_distribution<double> uniform(low, high), exponent(-44, 38);
  for (int i = 0; i < 20000; ++i) x.push_back(static_cast<float>(uniform(engine)));
  for (int i = 0; i < 20000; ++i) {
    const double magnitude = std::pow(10.0, exponent(engine));
    x.push_back(static_cast<float>(std::clamp(i % 2 != 0 ? magnitude : -magnitude, low, high)));
  }
  return x;
}

const float kSpecial[] = {0.0f,      -0.0f,   1.0f,          -1.0f,          0.5f,
                          -2.5f,     1.5f,    2.5f,          88.7f,          -87.0f,
                          1e-45f,    -1e-40f, 3.4028235e38f, -3.4028235e38f, INFINITY,
                          -INFINITY, NAN,     8388609.0f,    -4194303.5f,    1e9f};

using Reference = double (*)(double);

double sigmoid(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}
double gelu_angle(double x) { return 1.5957691216057308 * (x + 0.044715 * x * x * x); }

struct UnaryCase {
  PointwiseOp code;
  Reference reference;
  double low, high, bound;
};

const UnaryCase kUnary[] = {
    {PointwiseOp::neg, [](double x) { return -x; }, -9, 9, 0},
    {PointwiseOp::abs, [](double x) { return std::abs(x); }, -9, 9, 0},
    {PointwiseOp::sign, [](double x) { return x > 0   ? 1.0
                                              : x < 0 ? -1.0
                                                      : x; }, -9, 9, 0},
    {PointwiseOp::square, [](double x) { return x * x; }, -9, 9, 0.51},
    {PointwiseOp::exp, [](double x) { return std::exp(x); }, -104, 89, 2},
    {PointwiseOp::log, [](double x) { return std::log(x); }, 0, 9, 2},
    {PointwiseOp::log1p, [](double x) { return std::log1p(x); }, -1, 9, 3},
    {PointwiseOp::sqrt, [](double x) { return std::sqrt(x); }, 0, 9, 0.51},
    {PointwiseOp::rsqrt, [](double x) { return 1 / std::sqrt(x); }, 0, 9, 1.51},
    {PointwiseOp::reciprocal, [](double x) { return 1 / x; }, -9, 9, 0.51},
    {PointwiseOp::sin, [](double x) { return std::sin(x); }, -1e4, 1e4, 2},
    {PointwiseOp::cos, [](double x) { return std::cos(x); }, -1e4, 1e4, 2},
    {PointwiseOp::sin, [](double x) { return std::sin(x); }, -3e38, 3e38, 2},
    {PointwiseOp::cos, [](double x) { return std::cos(x); }, -3e38, 3e38, 2},
    {PointwiseOp::tanh, [](double x) { return std::tanh(x); }, -10, 10, 2},
    {PointwiseOp::sigmoid, sigmoid, -104, 20, 3},
    {PointwiseOp::softplus,
     [](double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }, -87, 40, 3},
    {PointwiseOp::relu, [](double x) { return x < 0 ? 0 : x; }, -9, 9, 0},
    {PointwiseOp::silu, [](double x) { return x < -1e4 ? -0.0 : x * sigmoid(x); }, -80, 20, 4},
    {PointwiseOp::erf, [](double x) { return std::erf(x); }, -5, 5, 3},
    {PointwiseOp::floor, [](double x) { return std::floor(x); }, -99, 99, 0},
    {PointwiseOp::ceil, [](double x) { return std::ceil(x); }, -99, 99, 0},
    {PointwiseOp::round, [](double x) { return std::nearbyint(x); }, -99, 99, 0},
};

Box column(DType t, const std::vector<float>& x) {
  Box b(t, {static_cast<int64_t>(x.size())});
  for (size_t i = 0; i < x.size(); ++i) b.set({static_cast<int64_t>(i)}, x[i]);
  return b;
}

TEST_CASE("unary formulas are within their bounds of the C library, special values included") {
  for (const UnaryCase& test : kUnary) {
    std::vector<float> x = samples(test.low, test.high);
    x.insert(x.end(), std::begin(kSpecial), std::end(kSpecial));
    Box in = column(DType::float32, x), out(DType::float32, in.sizes);
    run_everywhere(program({load(DType::float32, 0), make(test.code, DType::float32, 0)}, {1}),
                   {&in}, {&out});
    double worst = 0;
    float at = 0;
    for (int64_t i = 0; i < in.elements(); ++i) {
      const double distance = ulps(static_cast<float>(out.get({i})), test.reference(x[i]));
      if (distance > worst) worst = distance, at = x[i];
    }
    INFO(to_string(test.code) << " at " << at);
    CHECK(worst <= test.bound);
    Box wide = column(DType::float64, x), result(DType::float64, in.sizes);
    run_everywhere(program({load(DType::float64, 0), make(test.code, DType::float64, 0)}, {1}),
                   {&wide}, {&result});
    for (int64_t i = 0; i < in.elements(); ++i) {
      const double want = test.reference(x[i]), got = result.get({i});
      if (!(got == want || (std::isnan(got) && std::isnan(want)) ||
            std::abs(got - want) <= 4e-15 * std::abs(want) + 1e-307)) {
        FAIL(to_string(test.code) << "(" << x[i] << ") in float64 is " << got << ", not " << want);
      }
    }
  }
}

TEST_CASE("gelu, its gradient and erf_inv") {
  const std::vector<float> x = samples(-8, 8);
  Box in = column(DType::float32, x), y(DType::float32, in.sizes), slope(DType::float32, in.sizes);
  const DType f = DType::float32;
  run_everywhere(
      program({load(f, 0), make(PointwiseOp::gelu, f, 0), make(PointwiseOp::gelu_grad, f, 0)},
              {1, 2}),
      {&in}, {&y, &slope});
  for (int64_t i = 0; i < in.elements(); ++i) {
    const double v = x[i], s = sigmoid(gelu_angle(v));
    const double grad =
        s + v * s * sigmoid(-gelu_angle(v)) * 1.5957691216057308 * (1 + 3 * 0.044715 * v * v);
    if (std::abs(y.get({i}) - v * s) > 2e-5 * std::abs(v * s) + 1e-44)
      FAIL("gelu(" << v << ") = " << y.get({i}));
    if (std::abs(slope.get({i}) - grad) > 5e-7) FAIL("gelu_grad(" << v << ") = " << slope.get({i}));
  }
  for (double p = -0.99999; p < 1; p += 0.00037) {
    CHECK(std::abs(std::erf(math::erf_inv(p)) - p) < 4e-16);
    const float q = static_cast<float>(p);
    if (std::abs(math::erf_inv(q) / math::erf_inv(static_cast<double>(q)) - 1) > 1e-6)
      FAIL("erf_inv " << q);
  }
  CHECK(math::erf_inv(1.0f) == INFINITY);
  CHECK(math::erf_inv(-1.0) == -INFINITY);
}

TEST_CASE("pow follows std::pow") {
  std::vector<float> a, b;
  for (float x : kSpecial) {
    for (float y : {0.0f, -0.0f, 1.0f, -1.0f, 2.0f, 3.0f, -3.0f, 0.5f, -0.5f, 1e-40f, INFINITY,
                    -INFINITY, NAN, 1e9f}) {
      a.push_back(x);
      b.push_back(y);
    }
  }
  std::mt19937 engine(2);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 20000; ++i) {
    a.push_back(std::exp(3 * normal(engine)) * (i % 3 == 0 ? -1.0f : 1.0f));
    b.push_back(i % 3 == 0 ? std::round(9 * normal(engine)) : 9 * normal(engine));
  }
  Box x = column(DType::float32, a), y = column(DType::float32, b), out(DType::float32, x.sizes);
  const DType f = DType::float32;
  run_everywhere(program({load(f, 0), load(f, 1), make(PointwiseOp::pow, f, 0, 1)}, {2}), {&x, &y},
                 {&out});
  for (size_t i = 0; i < a.size(); ++i) {
    const float got = static_cast<float>(out.get({static_cast<int64_t>(i)}));
    const double want = std::pow(static_cast<double>(a[i]), static_cast<double>(b[i]));
    if (ulps(got, want) > 0.6)
      FAIL("pow(" << a[i] << ", " << b[i] << ") = " << got << ", not " << want);
  }
}

constexpr PointwiseOp kBinary[] = {
    PointwiseOp::add,        PointwiseOp::sub,           PointwiseOp::mul,
    PointwiseOp::div,        PointwiseOp::floor_div,     PointwiseOp::mod,
    PointwiseOp::minimum,    PointwiseOp::maximum,       PointwiseOp::less,
    PointwiseOp::less_equal, PointwiseOp::greater,       PointwiseOp::equal,
    PointwiseOp::not_equal,  PointwiseOp::greater_equal, PointwiseOp::logical_or,
    PointwiseOp::logical_and};

double binary(PointwiseOp code, double x, double y, bool integer) {
  switch (code) {
    case PointwiseOp::add:
      return x + y;
    case PointwiseOp::sub:
      return x - y;
    case PointwiseOp::mul:
      return x * y;
    case PointwiseOp::div:
      return integer ? (y == 0 ? 0 : std::trunc(x / y)) : x / y;
    case PointwiseOp::floor_div:
      return integer && y == 0 ? 0 : std::floor(x / y);
    case PointwiseOp::mod:
      return y == 0 ? (integer ? 0 : NAN) : x - std::floor(x / y) * y;
    case PointwiseOp::minimum:
      return std::isnan(x) || std::isnan(y) ? NAN : std::min(x, y);
    case PointwiseOp::maximum:
      return std::isnan(x) || std::isnan(y) ? NAN : std::max(x, y);
    case PointwiseOp::less:
      return x < y;
    case PointwiseOp::less_equal:
      return x <= y;
    case PointwiseOp::greater:
      return x > y;
    case PointwiseOp::greater_equal:
      return x >= y;
    case PointwiseOp::equal:
      return x == y;
    case PointwiseOp::not_equal:
      return x != y;
    case PointwiseOp::logical_and:
      return x != 0 && y != 0;
    case PointwiseOp::logical_or:
      return x != 0 || y != 0;
    default:
      return NAN;
  }
}

TEST_CASE("binary formulas of every type, rounded once an instruction") {
  const Sizes sizes = {7, 11, 13};
  for (DType t : {DType::float32, DType::float64, DType::bfloat16, DType::float16, DType::int32,
                  DType::int64}) {
    Box x(t, sizes, permuted_strides(sizes, {2, 0, 1})), y(t, sizes, {0, 1, 16});
    fill_random(x, 11, 3);
    each({1, 11, 13}, [&](const Sizes& i) { y.set(i, double((i[1] * 5 + i[2]) % 9) - 4); });
    if (is_floating(t)) x.set({1, 2, 3}, NAN);
    for (const PointwiseOp code : kBinary) {
      const DType result = is_test(info_of(code).dtypes) ? DType::bool_ : t;
      Box out(result, sizes, permuted_strides(sizes, {1, 0, 2})), want(result, {1});
      run_everywhere(program({load(t, 0), load(t, 1), make(code, result, 0, 1)}, {2}), {&x, &y},
                     {&out});
      each(sizes, [&](const Sizes& i) {
        want.set({0}, binary(code, x.get(i), y.get(i), !is_floating(t)));
        if (!close(out.get(i), want.get({0}), code == PointwiseOp::mod ? t : DType::int32, 4)) {
          FAIL(to_string(code) << " of " << to_string(t) << ": " << out.get(i) << " not "
                               << want.get({0}));
        }
      });
    }
  }
}

TEST_CASE("casts truncate, saturate and round; select and logic") {
  const std::vector<float> x = {0,    -0.0f, 1.9f,  -1.9f, 300,      -5,
                                3e9f, -3e9f, 1e30f, NAN,   INFINITY, 1.00390625f};
  Box in = column(DType::float32, x);
  auto cast = [&](DType t) {
    Box out(t, in.sizes);
    run_everywhere(program({load(DType::float32, 0), make(PointwiseOp::cast, t, 0)}, {1}), {&in},
                   {&out});
    return out;
  };
  Box i32 = cast(DType::int32), i64 = cast(DType::int64), u8 = cast(DType::uint8),
      b = cast(DType::bool_);
  CHECK(i32.get({2}) == 1);
  CHECK(i32.get({3}) == -1);
  CHECK(i32.get({6}) == 2147483647);
  CHECK(i32.get({7}) == -2147483648.0);
  CHECK(i64.get({6}) == 3000000000.0);
  CHECK(i64.get({9}) == 0);
  CHECK(u8.get({4}) == 255);
  CHECK(u8.get({5}) == 0);
  CHECK(b.get({1}) == 0);
  CHECK(b.get({9}) == 1);
  CHECK(cast(DType::bfloat16).get({11}) == 1.0);  // halfway to 1.0078125: to even
  const Box half = cast(DType::float16);
  CHECK(half.get({11}) == 1.00390625);
  CHECK(half.get({2}) == 1.900390625);
  CHECK(half.get({6}) == INFINITY);
  CHECK(std::isnan(half.get({9})));
  const DType f = DType::float32;
  Box out(f, in.sizes), finite(DType::bool_, in.sizes);
  Instr seven = make(PointwiseOp::constant, f);
  seven.imm = 7;
  run_everywhere(program({load(f, 0), make(PointwiseOp::is_finite, DType::bool_, 0), seven,
                          make(PointwiseOp::where, f, 1, 0, 2),
                          make(PointwiseOp::logical_not, DType::bool_, 1),
                          make(PointwiseOp::logical_not, DType::bool_, 4)},
                         {3, 5}),
                 {&in}, {&out, &finite});
  CHECK(out.get({9}) == 7);
  CHECK(out.get({4}) == 300);
  CHECK(finite.get({10}) == 0);
  CHECK(finite.get({8}) == 1);
}

TEST_CASE("positions: index, value and mask along inner and outer dims, with a run-time scalar") {
  for (const Sizes& sizes : {Sizes{5, 7}, Sizes{3, 1300}, Sizes{700, 3}}) {
    Instr row = make(PointwiseOp::index, DType::int64, -1, -1, -1, 0),
          inner = make(PointwiseOp::mask, DType::int64, 0, -1, -1, 1);
    Instr outer = make(PointwiseOp::mask, DType::int64, 1, -1, -1, 0),
          value = make(PointwiseOp::value, DType::int64);
    Instr all = make(PointwiseOp::mask, DType::int64, 4),
          number_of_column = make(PointwiseOp::index, DType::int64, -1, -1, -1, 1);
    row.expr = 0, inner.expr = 1, inner.imm = -1, outer.expr = 2, outer.imm = -2, value.expr = 3,
    all.expr = 4;
    number_of_column.expr = 5;
    AffineExpr scalar;
    scalar.scalar = 0;
    scalar.scalar_factor = 2;
    Box out(DType::int64, sizes), kept(DType::int64, sizes), place(DType::int64, sizes);
    run_everywhere(
        program({row, inner, outer, value, make(PointwiseOp::add, DType::int64, 2, 3), all,
                 number_of_column},
                {4, 5, 6}, {number(100), number(4), number(2), scalar, number(0), number(-3)}),
        {}, {&out, &kept, &place});
    each(sizes, [&](const Sizes& i) {
      const double masked = i[0] >= 2 ? -2 : i[1] >= 4 ? -1 : 100.0 + i[0];
      if (out.get(i) != masked + 10) FAIL("mask: " << out.get(i));
      if (kept.get(i) != 0) FAIL("mask without a dim");
      if (place.get(i) != i[1] - 3) FAIL("index");
    });
  }
}

TEST_CASE("Philox known answers; random numbers depend on the logical index only") {
  const PhiloxWords zero = philox4x32(0, 0, 0), ones = philox4x32(~0ull, ~0ull, ~0ull);
  CHECK(std::vector<uint32_t>(zero.w, zero.w + 4) ==
        std::vector<uint32_t>{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
  CHECK(std::vector<uint32_t>(ones.w, ones.w + 4) ==
        std::vector<uint32_t>{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
  for (const Sizes& sizes : {Sizes{9, 1001}, Sizes{9, 5}}) {
    for (bool transposed : {false, true}) {
      Box out(
          DType::int64, sizes,
          permuted_strides(sizes, transposed ? std::vector<int>{1, 0} : std::vector<int>{0, 1}));
      Instr random = make(PointwiseOp::random, DType::int64);
      random.expr = 0;
      run_everywhere(
          program({random}, {0},
                  {number(77), number(88), number(3), number(4001), number(6), number(1)}),
          {}, {&out});
      each(sizes, [&](const Sizes& i) {
        const uint64_t index = static_cast<uint64_t>((3 + i[0]) * 4001 + 6 + i[1]);
        if (out.get(i) != philox4x32(index / 4, 88, 77).w[index % 4])
          FAIL("random number " << index);
      });
    }
  }
}

/// Every operand may be repeated along any dims, and blocks may end with one row or several.
TEST_CASE("repeated operands have their values in every block") {
  std::mt19937 random(5);
  const auto below = [&](int n) {
    return static_cast<int64_t>(random() % static_cast<unsigned>(n));
  };
  for (int n = 0; n < 300; ++n) {
    Sizes sizes;
    for (const int most : {3, 3, 40, 400}) sizes.push_back(1 + below(most));
    const auto repeated = [&](DType dtype) {
      Sizes of = sizes, strides = dense_strides(sizes);
      for (size_t d = 0; d < sizes.size(); ++d) {
        if (below(2) == 0) of[d] = 1;
      }
      const Sizes dense = dense_strides(of);
      for (size_t d = 0; d < sizes.size(); ++d) strides[d] = of[d] == 1 ? 0 : dense[d];
      return Box(dtype, sizes, strides);
    };
    const DType dtypes[] = {DType::float32, DType::bfloat16, DType::float64, DType::int32};
    const DType f = dtypes[below(4)];
    Box x = repeated(f), y = repeated(f), hit = repeated(DType::bool_), out(f, sizes),
        kept(DType::bool_, sizes);
    for (Box* box : {&x, &y, &hit}) {
      each(sizes, [&](const Sizes& i) {
        box->set(i, static_cast<double>(box == &hit ? below(2) : below(100)));
      });
    }
    run_everywhere(program({load(DType::bool_, 0), load(f, 1), load(f, 2),
                            make(PointwiseOp::where, f, 0, 1, 2), make(PointwiseOp::add, f, 3, 2)},
                           {4, 0}),
                   {&hit, &x, &y}, {&out, &kept});
    each(sizes, [&](const Sizes& i) {
      const double want = (hit.get(i) != 0 ? x.get(i) : y.get(i)) + y.get(i);
      if (out.get(i) != want || kept.get(i) != hit.get(i))
        FAIL("case " << n << ": " << out.get(i) << " for " << want);
    });
  }
}

TEST_CASE("steps larger than the caches store the same numbers") {
  const int64_t n = (int64_t{7} << 20) + 5;
  Box x(DType::float32, {n}), y(DType::float32, {n});
  const double ramp[4] = {1, -2, 3.5, 8};
  for (int64_t i = 0; i < n; ++i) x.set({i}, ramp[i % 4] + static_cast<double>(i % 1000));
  run_kernel(KernelKind::pointwise,
             program({load(DType::float32, 0), make(PointwiseOp::square, DType::float32, 0)}, {1}),
             {&x}, {&y});
  for (int64_t i = 0; i < n; ++i) {
    const float v = static_cast<float>(x.get({i}));
    if (y.get({i}) != v * v) FAIL("element " << i);
  }
}

TEST_CASE("outputs may be inputs, and share registers") {
  const DType f = DType::float32;
  Box x(f, {3000}), y(f, {3000}), z(f, {3000});
  fill_random(x, 12);
  const Box before = x;
  Step step = program({load(f, 0), make(PointwiseOp::neg, f, 0), make(PointwiseOp::add, f, 0, 1),
                       make(PointwiseOp::sub, f, 1, 0)},
                      {1, 3, 1});
  run_kernel(KernelKind::pointwise, step, {&x}, {&x, &y, &z});
  each(x.sizes, [&](const Sizes& i) {
    if (x.get(i) != -before.get(i) || y.get(i) != 2 * x.get(i) || z.get(i) != x.get(i))
      FAIL("in place");
  });
}

TEST_CASE("a where in place changes what it selects, and its readers see the rest") {
  for (const DType f : {DType::float32, DType::float64, DType::bfloat16, DType::int32}) {
    Box x(f, {4000, 6}), hit(DType::bool_, {4000, 6}, {1, 0}), fresh(f, {4000, 6}, {0, 1}),
        twice(f, {4000, 6});
    each(x.sizes, [&](const Sizes& i) { x.set(i, static_cast<double>(i[0] % 90)); });
    each(fresh.sizes, [&](const Sizes& i) { fresh.set(i, static_cast<double>(100 + i[1])); });
    for (const int64_t row : {0, 1700, 1701, 3999}) hit.set({row, 0}, 1);
    const Box before = x;
    const Step step =
        program({load(DType::bool_, 0), load(f, 1), load(f, 2),
                 make(PointwiseOp::where, f, 0, 1, 2), make(PointwiseOp::add, f, 3, 3)},
                {3, 4});
    run_kernel(KernelKind::pointwise, step, {&hit, &fresh, &x}, {&x, &twice});
    each(x.sizes, [&](const Sizes& i) {
      const double want = hit.get(i) != 0 ? fresh.get(i) : before.get(i);
      if (x.get(i) != want || twice.get(i) != 2 * want)
        FAIL("row " << i[0] << ": " << x.get(i) << " and " << twice.get(i) << " for " << want);
    });
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
