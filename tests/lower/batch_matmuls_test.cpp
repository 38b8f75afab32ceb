// Matmuls of one shape that do not depend on each other become one with a batch dim.
#include "lower/passes/batch_matmuls.h"

#include "gpu/emulator.h"
#include "ops/op_cases_run.h"
#include "support/catch.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

using namespace matmul_kinds;

constexpr int64_t kSide = 16;

View square_of(int buffer) {
  return View{buffer, DType::float32, {kSide, kSide, kSide}, {kSide, 1, 0}, 0, {}};
}

/// out[i, j] = sum_k a[i, k] b[k, j].
Step matmul(int a, int b, int out) {
  Step step;
  step.kernel = KernelKind::matmul;
  step.spec = MatmulSpec{{kRow, kColumn, kSum}};
  step.in = {square_of(a), square_of(b)};
  step.in[0].strides = {kSide, 0, 1};
  step.in[1].strides = {0, 1, kSide};
  step.out = {square_of(out)};
  step.flops = 2 * kSide * kSide * kSide;
  return step;
}

Step squares(int from, int to) {
  Step step;
  step.kernel = KernelKind::copy;
  step.in = step.out = {View{from, DType::float32, {kSide * kSide}, {1}, 0, {}}};
  step.out[0].buffer = to;
  return step;
}

/// The sum of a matrix.
Step total(int from, int to) {
  Step step;
  step.kernel = KernelKind::reduce;
  step.in = {View{from, DType::float32, {kSide, kSide}, {kSide, 1}, 0, {}}};
  step.out = {View{to, DType::float32, {1, 1}, {0, 0}, 0, {}}};
  return step;
}

struct Case {
  std::vector<Step> steps;
  int buffers = 0, stored = 0;
  StepPrices prices = {};
  bool has_room = true;
};

Program batched(Case c) {
  Program program;
  for (int b = 0; b < c.buffers; ++b)
    program.buffers.push_back({"b" + std::to_string(b),
                               b < c.stored ? ArenaKind::persistent : ArenaKind::transient,
                               kSide * kSide * 4, 0});
  if (c.has_room) {  // a step whose memory batches can use
    for (int b = 0; b < 2; ++b)
      program.buffers.push_back({"large", ArenaKind::transient, 1 << 20, 0});
    c.steps.insert(c.steps.begin(), squares(c.buffers, c.buffers + 1));
  }
  const int count = static_cast<int>(c.steps.size());
  program.functions.push_back({"f", std::move(c.steps), {}, {}, false, count});
  batch_matmuls(program, c.prices, {}, {});
  return program;
}

/// The number of matmuls in each: "3 1".
std::string sizes(const Case& c) {
  std::string text;
  const Program program = batched(c);
  for (const Step& step : program.functions[0].steps) {
    if (step.kernel != KernelKind::matmul) continue;
    const bool batch = step.as<MatmulSpec>().kinds.size() == 4;
    text += fmt::format("{}{}", text.empty() ? "" : " ", batch ? step.out[0].sizes[0] : 1);
  }
  return text;
}

/// Layers of one shape in 16 bits and one that reads what they read, under Adam.
struct Layers {
  Graph graph;
  Tensor loss;

  explicit Layers(DType dtype) {
    const Dim rows("rows", 12), d("d", 8), out("out", 8), side("side", 8);
    const Tensor x = graph.input("x", {rows, d}, DType::float32);
    const auto weight = [&](const std::string& name, const Dim& to) {
      return cast(graph.parameter(name, {d, to}, nn::scaled_normal({"d"})), dtype);
    };
    Tensor y = cast(x, dtype);
    for (int layer = 0; layer < 5; ++layer)
      y = y + rename(tanh(einsum({y, weight(fmt::format("w{}", layer), out)}, {rows, out})), "out",
                     "d");
    Tensor sum = einsum({y, weight("left", side)}, {rows, side}) *
                 einsum({y, weight("right", side)}, {rows, side});
    loss = mean_all(square(cast(sum, DType::float32)));
    minimize(loss, 0.01, adam(), {1.0});
  }

  std::vector<double> train(const std::string& device, const std::string& mesh,
                            const std::string& layout, std::string* text = nullptr) {
    Clusters clusters;
    CompileOptions options{Mesh::parse(mesh), Layout::parse(layout), {{"train", {loss}, true}}};
    options.device = device;
    Session session(graph, clusters.of(options.mesh.size()), options);
    if (text != nullptr) *text = session.program().text();
    Array values(DType::float32, {"rows", "d"}, {12, 8});
    for (int64_t i = 0; i < values.elements(); ++i)
      values.data<float>()[i] = 0.1F * static_cast<float>(i * 7 % 23 - 11);
    std::vector<double> found;
    for (int step = 0; step < 4; ++step) {
      session.feed("x", values);
      session.run("train");
      found.push_back(session.fetch(loss.name()).at(0));
    }
    return found;
  }
};

TEST_CASE("matmuls of one shape that do not depend on each other are one batch") {
  CHECK(sizes({{matmul(0, 1, 2), matmul(3, 4, 5), matmul(6, 7, 8)}, 9}) == "3");
  CHECK(sizes({{matmul(0, 1, 2), matmul(0, 3, 4), matmul(0, 5, 6)}, 7}) == "3");
  // A result is read; something is written between; parts would overlap; one operand is stored.
  CHECK(sizes({{matmul(0, 1, 2), matmul(2, 3, 4)}, 5}) == "1 1");
  CHECK(sizes({{matmul(0, 1, 2), squares(2, 3), squares(3, 4), matmul(4, 5, 6)}, 7}) == "1 1");
  CHECK(sizes({{matmul(0, 1, 2), squares(3, 0), matmul(4, 5, 6)}, 7}) == "1 1");
  CHECK(sizes({{matmul(0, 1, 2), matmul(1, 0, 3)}, 4}) == "1 1");
  CHECK(sizes({{matmul(0, 1, 2), matmul(0, 3, 4), matmul(5, 6, 7)}, 8}) == "1 2");
  CHECK(sizes({{matmul(0, 3, 4), matmul(1, 5, 6)}, 7, 1}) == "1 1");
  CHECK(sizes({{matmul(0, 3, 4), matmul(0, 5, 6)}, 7, 1}) == "2");
  // Two may read what others made parts of common buffers, in one order for all operands.
  Step turned[] = {matmul(0, 2, 4), matmul(1, 3, 5)};
  for (Step& step : turned) step.in[0].strides = {1, 0, kSide};
  CHECK(sizes({{matmul(0, 2, 6), matmul(1, 3, 7), turned[0], turned[1]}, 8}) == "2 2");
  CHECK(sizes({{matmul(1, 3, 7), matmul(0, 2, 6), turned[0], turned[1]}, 8}) == "2 2");
  CHECK(sizes({{matmul(0, 3, 6), matmul(1, 2, 7), turned[0], turned[1]}, 8}).size() == 5);
  Step other = matmul(3, 4, 5);
  other.in[0].strides = {1, 0, kSide};
  CHECK(sizes({{matmul(0, 1, 2), other}, 6}) == "1 1");
}

TEST_CASE("no batch is made that needs more memory or time") {
  // Each operand dies with its matmul, which a batch delays.
  std::vector<Step> steps = {squares(8, 0), squares(8, 1), matmul(0, 1, 2),
                             squares(8, 3), squares(8, 4), matmul(3, 4, 5)};
  CHECK(sizes({steps, 9, 0, {}, false}) == "1 1");
  CHECK(sizes({steps, 9}) == "2");
  steps = {matmul(0, 1, 2), matmul(3, 4, 5), matmul(6, 7, 8), matmul(9, 10, 11)};
  const auto price = [](double of_three_and_more) {
    return StepPrices{[=](const Step& step) {
      const bool batch = step.as<MatmulSpec>().kinds.size() == 4;
      const double times = batch ? static_cast<double>(step.out[0].sizes[0]) : 1;
      return times > 2 ? times * of_three_and_more : times > 1 ? 1.5 : 1;
    }};
  };
  CHECK(sizes({steps, 12, 0, price(0.5)}) == "4");
  CHECK(sizes({steps, 12, 0, price(1)}) == "2 2");
}

TEST_CASE("the members of a batch become parts of common buffers, in their order") {
  const Program program =
      batched({{matmul(0, 1, 2), matmul(0, 3, 4), squares(2, 5), squares(4, 6)}, 7});
  const std::string text = to_string(program);
  INFO(text);
  const auto& steps = program.functions[0].steps;
  REQUIRE(steps.size() == 4);
  const Step& batch = steps[1];
  CHECK(batch.as<MatmulSpec>().kinds == std::vector{kBatch, kRow, kColumn, kSum});
  CHECK(batch.in[0].strides == std::vector<int64_t>{0, kSide, 0, 1});
  CHECK(batch.in[1].strides == std::vector<int64_t>{kSide * kSide, 0, 1, kSide});
  CHECK(batch.flops == 4 * kSide * kSide * kSide);
  CHECK(steps[2].in[0].buffer == batch.out[0].buffer);
  CHECK(steps[2].in[0].offset == 0);
  CHECK(steps[3].in[0].buffer == batch.out[0].buffer);
  CHECK(steps[3].in[0].offset == kSide * kSide);
  CHECK(program.buffers[static_cast<size_t>(batch.out[0].buffer)].bytes == 8 * kSide * kSide);
}

TEST_CASE("sums of matrices are a batch that reads parts in the order in which they lie") {
  // The last sum moves up to the first, and an addition between stays below it.
  const Program program = batched(
      {{matmul(0, 1, 2), matmul(3, 4, 5), total(5, 6), squares(6, 8), total(2, 7), squares(7, 9)},
       10});
  const std::string text = to_string(program);
  INFO(text);
  const auto& steps = program.functions[0].steps;
  REQUIRE(steps.size() == 5);
  const Step &product = steps[1], &sums = steps[2];
  REQUIRE(sums.kernel == KernelKind::reduce);
  CHECK(sums.in[0].buffer == product.out[0].buffer);
  CHECK(sums.in[0].offset == 0);
  CHECK(sums.in[0].sizes == std::vector<int64_t>{2, kSide, kSide});
  CHECK(sums.in[0].strides == std::vector<int64_t>{kSide * kSide, kSide, 1});
  CHECK(sums.out[0].strides[0] == kSide * kSide);
  CHECK(steps[3].in[0].buffer == sums.out[0].buffer);
  CHECK(steps[3].in[0].offset == kSide * kSide);  // of the second matmul
  CHECK(steps[4].in[0].offset == 0);
  CHECK(batched({{total(0, 1), squares(1, 2), total(2, 3)}, 4}).functions[0].steps.size() == 4);
}

TEST_CASE("the gradients of the layers' weights are one matmul on a GPU", "[cuda]") {
  CudaEmulator gpu;
  const WithEmulator here(gpu);
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    Layers layers(dtype);
    const std::vector<double> expected = layers.train("cpu", "a:1", "");
    for (const auto& [mesh, layout] :
         {std::pair("a:1", ""), std::pair("a:2;b:2", "rows:a; out,side:b; @state d:a")}) {
      if (dtype == DType::float32 && std::string(mesh) != "a:1") continue;
      std::string text;
      const std::vector<double> found = layers.train("cuda", mesh, layout, &text);
      INFO(mesh << " " << layout << "\n" << text);
      if (std::string(mesh) == "a:1") CHECK(text.find("kinds=[batch,") != text.npos);
      for (size_t i = 0; i < expected.size(); ++i)
        CHECK(found[i] == Approx(expected[i]).epsilon(dtype == DType::float32 ? 1e-4 : 0.02));
    }
  }
  CHECK(gpu.take_misuses().empty());
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
