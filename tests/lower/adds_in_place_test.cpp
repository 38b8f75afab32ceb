// A product whose result is only added to an accumulator is added there by the matmul itself.
#include <cmath>
#include <random>

#include "compile/kernel_info.h"
#include "kernels/cpu/takes_epilogue.h"
#include "lower/lower.h"
#include "lower/passes/epilogue_chain.h"
#include "lower/passes/fuse_epilogues.h"
#include "lower/passes/liveness.h"
#include "program/windows.h"
#include "support/catch.h"
#include "support/program_run.h"
#include "support/sum_of_two.h"
#include "tessera/nn.h"
#include "tessera/optim.h"

namespace tessera::test {

namespace TESSERA_FILE {

using namespace matmul_kinds;

constexpr int64_t kSide = 24;

View matrix(int buffer, DType dtype) {
  return View{buffer, dtype, {kSide, kSide}, {kSide, 1}, 0, {}};
}

/// Buffer 2 = buffer 0 times buffer 1.
Step product(DType dtype) {
  Step step;
  step.kernel = KernelKind::matmul;
  step.spec = MatmulSpec{{kRow, kColumn, kSum}};
  const std::vector<int64_t> sizes{kSide, kSide, kSide};
  step.in = {View{0, dtype, sizes, {kSide, 0, 1}, 0, {}},
             View{1, dtype, sizes, {0, 1, kSide}, 0, {}}};
  step.out = {View{2, dtype, sizes, {kSide, 1, 0}, 0, {}}};
  return step;
}

/// `to` = x + y.
Step sum(const View& x, const View& y, const View& to) {
  Step step;
  step.kernel = KernelKind::pointwise;
  step.in = {x, y};
  step.out = {to};
  step.pointwise = sum_of_two(x.dtype);
  return step;
}

/// `to` = x + y + z.
Step sum(const View& x, const View& y, const View& z, const View& to) {
  Step step = sum(x, y, to);
  step.in.push_back(z);
  Instr load = step.pointwise.code[0], add = step.pointwise.code[2];
  load.slot = 2;
  add.a = 2;
  add.b = 3;
  step.pointwise.code.insert(step.pointwise.code.end(), {load, add});
  step.pointwise.outputs = {4};
  return step;
}

/// The steps after the pass. Buffer 3 is the accumulator, which lives on; 4 and 5 are transient.
std::vector<Step> fused(std::vector<Step> steps, DType dtype = DType::float32) {
  Program program;
  for (int b = 0; b < 6; ++b) {
    const ArenaKind arena = b == 3 ? ArenaKind::persistent : ArenaKind::transient;
    program.buffers.push_back({"b", arena, kSide * kSide * size_of(dtype), 0});
  }
  const int count = static_cast<int>(steps.size());
  program.functions.push_back({"f", std::move(steps), {}, {}, false, count});
  fuse_epilogues(program, cpu::takes_epilogue);
  return program.functions[0].steps;
}

/// Two microbatches of a small model, whose gradients a loop adds up.
struct Accumulated {
  Graph graph;
  Tensor loss;
  Wholes feeds;

  Accumulated() {
    const Dim part("batch", 6), in("in", 40), hidden("hidden", 48);
    Tensor up = graph.parameter("up", {in, hidden}, nn::normal(0.1)),
           down = graph.parameter("down", {hidden, in}, nn::normal(0.1));
    const auto model = [&] {
      Tensor x = graph.input("x", {part, in}, DType::float32);
      Tensor y = einsum({relu(einsum({x, up}, {part, hidden})), down}, {part, in});
      return mean_all(square(y - x));
    };
    loss = minimize_in_microbatches(graph, "batch", 2, model, constant(graph, 0.1), sgd()).loss;
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal;
    for (const auto& [name, rows, columns, dims] :
         {std::tuple("x", 12, 40, std::vector<std::string>{"batch", "in"}),
          {"up", 40, 48, {"in", "hidden"}},
          {"down", 48, 40, {"hidden", "in"}}}) {
      Whole whole;
      whole.dims = dims;
      whole.sizes = {rows, columns};
      for (int64_t i = 0; i < rows * columns; ++i)
        whole.data.push_back(static_cast<float>(normal(random)));
      feeds[name] = whole;
    }
  }
  Program lowered(bool in_place, const char* mesh = "x:1", const char* layout = "") const {
    LowerOptions options{Mesh::parse(mesh),
                         Layout::parse(layout),
                         {{"train", {loss}, true}},
                         composite_kernels(),
                         [](const Step& step) { return workspace_bytes(step, 3, 0); },
                         {}};
    if (in_place) options.takes_epilogue = cpu::takes_epilogue;
    return lower(graph, options);
  }
};

struct Counts {
  int steps = 0, in_place = 0;
  int64_t bytes = 0;  ///< of all steps of the loop
};

Counts counts_of_loop(const Program& program) {
  Counts counts;
  for (const Function& f : program.functions) {
    for (const Step& loop : f.steps) {
      for (const Function& body : loop.body) {
        for (const Step& step : body.steps) {
          counts.steps += 1;
          counts.in_place += step.kernel == KernelKind::matmul && adds_in_place(step) ? 1 : 0;
          counts.bytes += touched_bytes(step);
        }
      }
    }
  }
  return counts;
}

TEST_CASE("a product that is added to an accumulator is added there by the matmul") {
  for (const DType dtype : {DType::float32, DType::float64}) {
    const View held = matrix(3, dtype), result = matrix(2, dtype);
    for (const Step& add : {sum(held, result, held), sum(result, held, held)}) {
      const std::vector<Step> steps = fused({product(dtype), add}, dtype);
      REQUIRE(steps.size() == 1);
      CHECK(adds_in_place(steps[0]));
      CHECK(cpu::takes_epilogue(steps[0]));
    }
  }
}

TEST_CASE("an accumulator that the matmul may not overwrite gets its sum apart") {
  const DType dtype = DType::float32;
  const View held = matrix(3, dtype), result = matrix(2, dtype), other = matrix(4, dtype),
             more = matrix(5, dtype);
  const auto is_apart = [](const std::vector<Step>& steps) {
    return steps.size() > 1 && steps[0].pointwise.code.empty();
  };
  // Something reads the accumulator, or the product, between or afterwards.
  CHECK(is_apart(fused({product(dtype), sum(held, held, other), sum(held, result, held)})));
  CHECK(is_apart(fused({product(dtype), sum(held, result, held), sum(result, result, other)})));
  // The sum goes elsewhere while the accumulator lives on.
  CHECK(is_apart(fused({product(dtype), sum(held, result, other), sum(other, held, held)})));
  // A part of the accumulator, or its transpose, is added.
  View crossed = held;
  crossed.strides = {1, kSide};
  CHECK(is_apart(fused({product(dtype), sum(crossed, result, held)})));
  // Rounded after the product and after the sum.
  CHECK(is_apart(fused(
      {product(DType::bfloat16),
       sum(matrix(3, DType::bfloat16), matrix(2, DType::bfloat16), matrix(3, DType::bfloat16))},
      DType::bfloat16)));
  // A matrix that dies takes the sum; one that is read afterwards does not.
  CHECK(adds_in_place(fused({product(dtype), sum(result, other, held, more)})[0]));
  CHECK(is_apart(fused({product(dtype), sum(result, other, held, more), sum(more, other, held)})));
}

TEST_CASE("gradients of microbatches are added up by the matmuls, in fewer bytes") {
  const Accumulated model;
  const Program apart = model.lowered(false), in_place = model.lowered(true);
  const Counts before = counts_of_loop(apart), after = counts_of_loop(in_place);
  CHECK(before.in_place == 0);
  CHECK(after.in_place == 2);
  CHECK(after.steps == before.steps - 2);
  // The product is neither written nor read apart.
  CHECK(before.bytes - after.bytes == 2 * 2 * (40 * 48) * 4);
  const auto peak = [](const Program& p) {
    return peak_live_bytes(p, p.functions[static_cast<size_t>(p.function("train"))]);
  };
  CHECK(peak(in_place) < peak(apart));
  Cluster one = Cluster::threads(1), two = Cluster::threads(2);
  const Wholes want = run_program(apart, one, "train", model.feeds);
  const auto check = [&](const Wholes& got) {
    REQUIRE(got.size() == want.size());
    for (const auto& [name, whole] : want) {
      INFO(name);
      for (size_t i = 0; i < whole.data.size(); ++i)
        REQUIRE(std::abs(got.at(name).data[i] - whole.data[i]) <
                1e-6 * (1 + std::abs(whole.data[i])));
    }
  };
  check(run_program(in_place, one, "train", model.feeds));
  for (const char* layout : {"batch:x", "hidden:x", "batch:x; @grads in:x"}) {
    INFO(layout);
    check(run_program(model.lowered(true, "x:2", layout), two, "train", model.feeds));
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
