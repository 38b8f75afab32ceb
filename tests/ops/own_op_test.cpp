// Ops of a user's own with a host function: what follows from their declaration, and that
// tessera/testing.h finds what is wrong with one.
#include <cmath>

#include "support/catch.h"
#include "support/expect_error.h"
#include "tessera/tessera.h"
#include "tessera/testing.h"

namespace tessera::test {

namespace TESSERA_FILE {

using testing::OpReport;
using testing::OpTest;
using testing::OpTestOptions;
using testing::test_op;
using Tensors = OpTest::Tensors;
using Values = OpTest::Values;
using Types = std::vector<ValueType>;
using Index = std::span<const int64_t>;

const Dim a("a", 5), b("b", 6), bins("bins", 7);

/// Calls work(float or double) for the type of the first floating operand or result.
template <class Work>
void in_type(DType dtype, Work work) {
  dtype == DType::float32 ? work(float()) : work(double());
}

Types same_type(const OpCall& call) { return {call.in[0]}; }

template <double (*Function)(double)>
void pointwise_on_host(const HostCall& call) {
  in_type(call.in[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    call.each([&](Index i) {
      call.out[0].at<T>(i) = static_cast<T>(Function(static_cast<double>(call.in[0].at<T>(i))));
    });
  });
}

double huber(double x) { return std::abs(x) <= 0.5 ? x * x / 2 : 0.5 * (std::abs(x) - 0.25); }
double square_of(double x) { return x * x; }
double wrong_huber(double x) { return huber(x) + 1e-4; }

Tensors huber_gradient(const GradCall& call) {
  return {call.grads[0] * clip(call.in[0], -0.5, 0.5)};
}
Tensors wrong_gradient(const GradCall& call) { return {call.grads[0] * call.in[0]}; }

constinit const Op kHuber = {.name = "huber",
                             .infer = same_type,
                             .gradient = huber_gradient,
                             .host = pointwise_on_host<huber>};
constinit const Op kWrongValue = {.name = "wrong_value",
                                  .infer = same_type,
                                  .gradient = huber_gradient,
                                  .host = pointwise_on_host<wrong_huber>};
constinit const Op kWrongGradient = {.name = "wrong_gradient",
                                     .infer = same_type,
                                     .gradient = wrong_gradient,
                                     .host = pointwise_on_host<huber>};
constinit const Op kNotLinear = {
    .name = "not_linear", .infer = same_type, .linear = {1u}, .host = pointwise_on_host<square_of>};

Types infer_without(const OpCall& call) {
  return {{call.in[0].shape.without({call.attrs.get<std::string>("dim")}), call.in[0].dtype}};
}

/// Sums of x^3 + 1 along `dim`; the ones of the padding, which is zero, count unless the function
/// looks at what is valid.
template <bool Looks>
void sum_cubes(const HostCall& call) {
  const int d = call.find(call.attrs->get<std::string>("dim"));
  const int64_t n = Looks ? call.dims[d].valid : call.dims[d].size;
  in_type(call.in[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    call.each(
        [&](Index i) {
          const T* x = &call.in[0].at<T>(i);
          T sum = 0;
          for (int64_t k = 0; k < n; ++k, x += call.in[0].strides[d]) sum += *x * *x * *x + 1;
          call.out[0].at<T>(i) = sum;
        },
        d);
  });
}

Tensors cubes_gradient(const GradCall& call) {
  return {3.0 * square(call.in[0]) * broadcast(call.grads[0], call.in[0].shape())};
}

constinit const Op kCubes = {
    .name = "cubes", .infer = infer_without, .gradient = cubes_gradient, .host = sum_cubes<true>};
constinit const Op kPaddedCubes = {.name = "padded_cubes",
                                   .infer = infer_without,
                                   .gradient = cubes_gradient,
                                   .host = sum_cubes<false>};

Types infer_histogram(const OpCall&) { return {{{bins}, DType::int32}}; }

/// How often each number of bins occurs. bins is fresh: a rank counts for its own.
template <bool Looks>
void count(const HostCall& call) {
  const int to = call.find("bins"), from = call.find("a");
  const int64_t first = Looks ? call.dims[to].offset : 0;
  call.each(
      [&](Index i) {
        const int32_t* x = &call.in[0].at<int32_t>(i);
        int32_t n = 0;
        for (int64_t k = 0; k < call.dims[from].valid; ++k)
          n += x[k * call.in[0].strides[from]] == first + i[to];
        call.out[0].at<int32_t>(i) = n;
      },
      from);
}
constinit const Op kHistogram = {
    .name = "histogram", .infer = infer_histogram, .host = count<true>};
constinit const Op kNoOffset = {
    .name = "no_offset", .infer = infer_histogram, .host = count<false>};

/// Composites whose shape rule says something else than the body.
Tensors transposed_body(const Tensors& in, const Attrs&) {
  return {transpose(in[0], {b, a}) * 2.0};
}
Tensors widened_body(const Tensors& in, const Attrs&) { return {cast(in[0], DType::float64)}; }
Tensors doubled_body(const Tensors& in, const Attrs&) { return {in[0], in[0]}; }
constinit const Op kTransposed = {
    .name = "transposed", .infer = same_type, .body = transposed_body};
constinit const Op kWidened = {.name = "widened", .infer = same_type, .body = widened_body};
constinit const Op kDoubled = {.name = "doubled", .infer = same_type, .body = doubled_body};
constinit const Op kOuter = {
    .name = "outer", .infer = same_type, .body = [](const Tensors& in, const Attrs&) {
      return in[0].graph().add(kTransposed, in, {}, Loc::current());
    }};

TEST_CASE("a composite whose body contradicts its shape rule is an error where it is used",
          "[errors]") {
  Graph g;
  const Tensor x = g.input("x", {a, b}, DType::float32);
  const auto add = [&](const Op& op) { return g.add(op, {x}, {}, Loc::current())[0]; };
  expect_usage({"[transposed] `infer` of 'transposed' says that its results are float32[a=5, b=6], "
                "and its `body` makes float32[b=6, a=5]",
                "own_op_test.cpp:"},
               [&] { add(kTransposed); });
  expect_usage({"and its `body` makes float64[a=5, b=6]"}, [&] { add(kWidened); });
  expect_usage({"and its `body` makes float32[a=5, b=6], float32[a=5, b=6]"},
               [&] { add(kDoubled); });
  // Inside of another body, where the model is compiled.
  const Tensor y = add(kOuter);
  Cluster one = Cluster::threads(1);
  expect_usage({"`infer` of 'transposed' says"}, [&] {
    Session(g, one, {Mesh::parse("x:1"), Layout(), {{"f", {y}}}});
  });
}

/// A composite with a host function for where "b" is whole.
Tensors centered_body(const Tensors& in, const Attrs&) { return {in[0] - reduce_mean(in[0], "b")}; }
void center(const HostCall& call) {
  const int d = call.find("b");
  const int64_t n = call.dims[d].size, step = call.in[0].strides[d];
  in_type(call.in[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    call.each(
        [&](Index i) {
          const T* x = &call.in[0].at<T>(i);
          T* y = &call.out[0].at<T>(i);
          double sum = 0;
          for (int64_t k = 0; k < n; ++k) sum += static_cast<double>(x[k * step]);
          for (int64_t k = 0; k < n; ++k)
            y[k * call.out[0].strides[d]] = x[k * step] - static_cast<T>(sum / double(n));
        },
        d);
  });
}
constinit const Op kCentered = {
    .name = "centered", .infer = same_type, .body = centered_body, .host = center};

/// A composite called like one of Tessera's that has a kernel.
constinit const Op kNamesake = {.name = "attention", .infer = same_type, .body = centered_body};

void throw_error(const HostCall&) { throw Error(ErrorKind::usage, "x must be positive"); }
void throw_other(const HostCall&) { throw std::runtime_error("out of luck"); }
void ask_for(const HostCall& call) { call.find("aa"); }
constinit const Op kThrowsError = {.name = "picky", .infer = same_type, .host = throw_error};
constinit const Op kThrowsOther = {.name = "unlucky", .infer = same_type, .host = throw_other};
constinit const Op kAsks = {.name = "asks", .infer = same_type, .host = ask_for};

Tensor apply(const Op& op, Tensor x, Attrs attrs = {}, Loc at = Loc::current()) {
  return x.graph().add(op, {x}, std::move(attrs), at)[0];
}

/// The op on exp(x) or x, so that the padding of its operand holds anything.
OpTest test_of(const Op& op, Attrs attrs = {}, bool of_exp = true) {
  OpTest test;
  test.name = std::string(op.name);
  test.in = {{"x", {a, b}}};
  test.build = [&op, attrs, of_exp](Graph&, const Tensors& in) -> Tensors {
    return {apply(op, of_exp ? exp(in[0]) : in[0], attrs)};
  };
  return test;
}

OpTest huber_test(const Op& op) {
  OpTest test = test_of(op, {}, false);
  test.expect = [](const Values& in) -> Values {
    std::vector<double> y;
    for (double x : in[0]) y.push_back(huber(x));
    return {y};
  };
  return test;
}

OpTest histogram_test(const Op& op) {
  OpTest test;
  test.name = std::string(op.name);
  test.in = {{"x", {a}, 0, 6, DType::int32, true}};
  test.build = [&op](Graph&, const Tensors& in) -> Tensors { return {apply(op, in[0])}; };
  return test;
}

void expect_ok(const OpTest& test, int gradients = 1) {
  const OpReport report = test_op(test);
  INFO(report.to_string());
  CHECK(report.ok());
  CHECK(report.gradients == gradients);
  CHECK(report.layouts > 20);
}

/// The report has a failure with these words.
void expect_failure(const OpTest& test, const std::string& words) {
  const OpReport report = test_op(test);
  INFO(report.to_string());
  CHECK(!report.ok());
  CHECK(report.to_string().find(words) != std::string::npos);
}

std::string program_of(const Op& op, const std::string& layout) {
  Graph g;
  Tensor y = apply(op, g.input("x", {a, b}, DType::float32));
  Cluster cluster = Cluster::threads(2);
  Session session(g, cluster, {Mesh::parse("m:2"), Layout::parse(layout), {{"run", {y}, false}}});
  return session.program().text();
}

void run_with(const Op& op) {
  Graph g;
  Tensor y = apply(op, g.input("x", {a, b}, DType::float32)).named("y");
  Cluster cluster = Cluster::threads(1);
  Session session(g, cluster, {Mesh::parse("m:1"), {}, {{"run", {y}, false}}});
  session.feed("x", Array(DType::float32, {"a", "b"}, {a.size, b.size}));
  session.run("run");
}

TEST_CASE("an op with a host function is split, masked and differentiated", "[own_op][fast]") {
  expect_ok(huber_test(kHuber));
  expect_ok(test_of(kHuber));
  expect_ok(test_of(kCubes, {{"dim", "b"}}));
  expect_ok(test_of(kCubes, {{"dim", "a"}}));
  expect_ok(test_of(kCentered));
  const OpReport report = test_op(histogram_test(kHistogram));
  INFO(report.to_string());
  CHECK(report.ok());
}

TEST_CASE("a composite is what it says, whatever it is called", "[own_op][fast]") {
  OpTest test = test_of(kNamesake, {}, false);
  test.expect = [](const Values& in) -> Values {
    std::vector<double> y = in[0];
    for (size_t i = 0; i < y.size(); i += 6) {
      double mean = 0;
      for (size_t k = i; k < i + 6; ++k) mean += y[k] / 6;
      for (size_t k = i; k < i + 6; ++k) y[k] -= mean;
    }
    return {y};
  };
  expect_ok(test);
}

TEST_CASE("an op with a host function sees the run's sizes", "[own_op][fast]") {
  OpTest test = test_of(kCubes, {{"dim", "a"}});
  test.in[0].shape = {Dim::bounded("a", 5), b};
  test.sizes = {{"a", 3}};
  expect_ok(test);
}

TEST_CASE("the tests of an op find what is wrong", "[own_op][fast]") {
  expect_failure(huber_test(kWrongValue), "wrong_value: float32 'wrong_value' is off by");
  expect_failure(huber_test(kWrongGradient), "wrong_gradient: the gradient by 'x' is off by");
  expect_failure(test_of(kPaddedCubes, {{"dim", "a"}}), "layout 'a:x': 'padded_cubes' is off by");
  expect_failure(histogram_test(kNoOffset), "layout 'bins:x': 'no_offset' is off by");
  OpTest partial = test_of(kNotLinear);
  partial.build = [](Graph&, const Tensors& in) -> Tensors {
    return {apply(kNotLinear, reduce_sum(in[0], "b"))};
  };
  partial.in[0].differentiable = false;
  expect_failure(partial, "layout 'b:x': 'not_linear' is off by");
  OpTest unlucky = huber_test(kThrowsOther);
  expect_failure(unlucky,
                 "the op 'unlucky' has no gradient, and one is asked for that goes through "
                 "'unlucky': give the op one (@unlucky.gradient in Python, Op::gradient");
  unlucky.in[0].differentiable = false;
  expect_failure(unlucky, "device error: [unlucky]");
}

TEST_CASE("a test of an op that is none is refused", "[own_op][errors][fast]") {
  expect_usage({"[none] the test needs an operand and build()"}, [] { test_op({"none"}); });
  OpTest test = huber_test(kHuber);
  test.types = {DType::int32};
  expect_usage({"[huber] the types of a test are floating"}, [&] { test_op(test); });
  test = huber_test(kHuber);
  test.build = [](Graph&, const Tensors&) -> Tensors { return {}; };
  expect_failure(test, "[huber] the test builds no result");
  test = huber_test(kHuber);
  test.expect = [](const Values&) -> Values { return {}; };
  expect_failure(test, "expect() gives 0 values for 1 results");
}

TEST_CASE("a host function is in the Program by name", "[own_op][fast]") {
  const std::string text = program_of(kHuber, "a:m");
  CHECK(text.find("= host huber[a=3,b=6](") != std::string::npos);
  CHECK(text == program_of(kHuber, "a:m"));
  CHECK(program_of(kCentered, "a:m").find("= host centered[") != std::string::npos);
  CHECK(program_of(kCentered, "b:m").find("= host") == std::string::npos);
}

TEST_CASE("an eager graph runs a host function", "[own_op][fast]") {
  Graph g({.eager = true});
  Array x(DType::float64, {"a"}, {5});
  x.data<double>()[2] = -3;
  Tensor in = g.input("x", {a}, DType::float64);
  g.feed("x", x);
  CHECK(g.fetch(apply(kHuber, in)).at(2) == Approx(1.375));
}

TEST_CASE("what a host function throws names its node and line", "[own_op][errors][fast]") {
  expect_usage({"[picky] host function of 'picky': x must be positive", "own_op_test.cpp:"},
               [] { run_with(kThrowsError); });
  expect_error(ErrorKind::device, {"[unlucky] host function of 'unlucky': out of luck"},
               [] { run_with(kThrowsOther); });
  expect_usage({"it has no dim 'aa'; did you mean 'a'?"}, [] { run_with(kAsks); });
  static constexpr Op kMakesNothing = {.name = "nothing"};
  expect_usage(
      {"[nothing] an op says what it makes: give it `infer`, or a `body`", "own_op_test.cpp:"},
      [] { run_with(kMakesNothing); });
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
