// Sums of matmuls, and reductions of one operand, become one step.
#include "lower/passes/concat_k_matmuls.h"

#include "gpu/emulator.h"
#include "kernels/cuda/epilogue.h"
#include "lower/passes/merge_reductions.h"
#include "ops/op_cases_run.h"
#include "support/catch.h"
#include "support/gpt_run.h"
#include "support/sum_of_two.h"

namespace tessera::test {

namespace TESSERA_FILE {

using namespace matmul_kinds;

constexpr int64_t kTokens = 16, kIn = 24, kHeads = 2;

View view(int buffer, std::vector<int64_t> sizes, std::vector<int64_t> strides) {
  return View{buffer, DType::bfloat16, std::move(sizes), std::move(strides), 0, {}};
}

/// y[t, i] = sum_{h, d} dy[t, h, d] w[i, h, d], with `width` elements in [h, d]; added to y if
/// `adds`.
Step product(int dy, int w, int y, int64_t width, bool adds) {
  Step step;
  step.kernel = KernelKind::matmul;
  step.spec = MatmulSpec{{kRow, kColumn, kSum, kSum}};
  const int64_t head = width / kHeads;
  const std::vector<int64_t> sizes{kTokens, kIn, kHeads, head};
  step.in = {view(dy, sizes, {width, 0, head, 1}), view(w, sizes, {0, width, head, 1})};
  step.out = {view(y, sizes, {kIn, 1, 0, 0})};
  step.flops = 2 * kTokens * kIn * width;
  if (!adds) return step;
  step.in.push_back(step.out[0]);
  step.pointwise = sum_of_two(DType::bfloat16);
  return step;
}

/// out = f(in), over [kTokens, width], or over one dim as a group of one tensor.
Step unary(int in, int out, int64_t width, int64_t rows = kTokens, bool group = false) {
  Step step;
  step.kernel = KernelKind::pointwise;
  const View whole = group ? view(in, {rows * width}, {1}) : view(in, {rows, width}, {width, 1});
  step.in = step.out = {whole};
  step.out[0].buffer = out;
  Instr load, neg;
  load.code = PointwiseOp::load;
  load.slot = 0;
  neg.code = PointwiseOp::neg;
  neg.a = 0;
  load.dtype = neg.dtype = DType::bfloat16;
  step.pointwise = {{load, neg}, {1}};
  if (group) step.spec = TensorGroup{1};
  return step;
}

/// Buffers 0 and 1 are of 16 columns, 2 and 3 of 8, 4 is y, 5 is of 16 columns; 6 is large.
Program program_of(std::vector<Step> steps) {
  Program program;
  for (const int64_t elements : {kTokens * 16, kIn * 16, kTokens * 8, kIn * 8, kTokens * kIn,
                                 kTokens * 16, int64_t{1} << 20})
    program.buffers.push_back({"b", ArenaKind::transient, 2 * elements, 0});
  steps.insert(steps.begin(), unary(6, 6, 1 << 10, 1 << 10));
  const int count = static_cast<int>(steps.size());
  program.functions.push_back({"f", std::move(steps), {}, {}, false, count});
  return program;
}

std::vector<Step> added(std::vector<Step> steps, const StepPrices& prices = {}) {
  Program program = program_of(std::move(steps));
  concat_k_matmuls(program, prices, cuda::takes_epilogue, {});
  return {program.functions[0].steps.begin() + 1, program.functions[0].steps.end()};
}

TEST_CASE("a sum of matmuls is one over the contracted dims of both") {
  const std::vector<Step> steps =
      added({unary(5, 0, 16), unary(6, 1, 16, kIn, true), product(0, 1, 4, 16, false),
             product(2, 3, 4, 8, true), unary(4, 5, kIn)});
  REQUIRE(steps.size() == 4);
  const Step& sum = steps[2];
  CHECK(sum.as<MatmulSpec>().kinds == std::vector{kRow, kColumn, kSum});
  REQUIRE(sum.in.size() == 2);
  CHECK(sum.in[0].sizes == std::vector<int64_t>{kTokens, kIn, 24});
  CHECK(sum.in[0].strides == std::vector<int64_t>{24, 0, 1});
  CHECK(sum.in[1].strides == std::vector<int64_t>{0, 24, 1});
  CHECK(sum.out[0].strides == std::vector<int64_t>{kIn, 1, 0});
  CHECK(sum.pointwise.code.empty());
  CHECK(sum.flops == 2 * kTokens * kIn * 24);
  // Who writes an operand writes its part of each row, a group its rows apart.
  CHECK(steps[0].out[0].buffer == sum.in[0].buffer);
  CHECK(steps[0].out[0].strides == std::vector<int64_t>{24, 1});
  CHECK(steps[1].out[0].buffer == sum.in[1].buffer);
  CHECK(steps[1].out[0].sizes == std::vector<int64_t>{kIn, 16});
  CHECK(steps[1].out[0].strides == std::vector<int64_t>{24, 1});
  // The second part begins behind the first.
  const std::vector<Step> second =
      added({unary(5, 2, 8), product(0, 1, 4, 16, false), product(2, 3, 4, 8, true)});
  REQUIRE(second.size() == 2);
  CHECK(second[0].out[0].offset == 16);
}

TEST_CASE("matmuls stay apart where their sum is read between, or operands cannot be columns") {
  const Step first = product(0, 1, 4, 16, false), last = product(2, 3, 4, 8, true);
  CHECK(added({first, unary(4, 5, 8), last}).size() == 3);
  CHECK(added({first, unary(5, 0, 16), last}).size() == 3);
  CHECK(added({first, product(0, 3, 4, 8, true)}).size() == 2);
  CHECK(added({first, product(2, 3, 5, 8, true)}).size() == 2);
  Step other = unary(5, 0, 4, kTokens * 4);  // rows of another length that cross parts
  other.out[0].sizes = {8, 32};
  other.out[0].strides = {32, 1};
  other.in[0] = other.out[0];
  other.in[0].buffer = 5;
  CHECK(added({other, first, last}).size() == 3);
  const auto price = [](double of_sum) {
    return StepPrices{[=](const Step& step) { return step.out[0].sizes.size() == 3 ? of_sum : 1; }};
  };
  CHECK(added({first, last}, price(1.5)).size() == 1);
  CHECK(added({first, last}, price(2)).size() == 2);
}

TEST_CASE("reductions that read a common operand are one step with two results") {
  const auto reduce = [](int in, int out, PointwiseOp code) {
    Step step = unary(in, out, 8);
    step.kernel = KernelKind::reduce;
    step.pointwise.code[1].code = code;
    step.out[0].sizes = {1, 8};
    step.out[0].strides = {0, 1};
    return step;
  };
  const auto merged = [](std::vector<Step> steps) {
    Program program = program_of(std::move(steps));
    merge_reductions(program);
    return std::vector<Step>{program.functions[0].steps.begin() + 1,
                             program.functions[0].steps.end()};
  };
  Step plain = reduce(2, 1, PointwiseOp::neg), largest = plain, of_rows = plain;
  plain.pointwise = {};
  const std::vector<Step> both = merged({plain, reduce(2, 0, PointwiseOp::square)});
  REQUIRE(both.size() == 1);
  CHECK(both[0].in.size() == 1);
  REQUIRE(both[0].out.size() == 2);
  CHECK(both[0].out[0].buffer == 0);
  CHECK(both[0].out[1].buffer == 1);
  CHECK(both[0].pointwise.outputs == std::vector<int>{1, 2});
  largest.combiner = Combiner::max;
  of_rows.out[0].sizes = {kTokens, 1};
  of_rows.out[0].strides = {1, 0};
  for (const Step& other : {largest, of_rows, reduce(3, 1, PointwiseOp::neg)})
    CHECK(merged({other, reduce(2, 0, PointwiseOp::square)}).size() == 2);
  CHECK(merged({plain, unary(1, 5, 8, 1), reduce(2, 0, PointwiseOp::square)}).size() == 3);
  CHECK(merged({plain, unary(5, 2, 8), reduce(2, 0, PointwiseOp::square)}).size() == 3);
}

TEST_CASE("a gpt trains alike where matmuls add up, sum their operands and come in batches",
          "[cuda]") {
  nn::GptOptions size = small_gpt(DType::bfloat16);
  size.d_model = 24;
  size.ff = 32;
  size.length = 8;
  Clusters clusters;
  const GptOutcome expected = train_gpt(size, clusters.of(1), Mesh::parse("a:1"), "", 3);
  for (const bool has_epilogues : {true, false}) {
    CudaEmulator gpu;
    gpu.has_epilogues = has_epilogues;
    const WithEmulator here(gpu);
    for (const auto& [mesh, layout] :
         {std::pair("a:1", ""), std::pair("a:3", "heads:a"), std::pair("a:2", "batch:a")}) {
      if (!has_epilogues && std::string(mesh) != "a:1") continue;
      INFO(mesh << " " << layout);
      const Mesh of = Mesh::parse(mesh);
      const GptOutcome found = train_gpt(size, clusters.of(of.size()), of, layout, 3, "cuda");
      for (size_t i = 0; i < expected.losses.size(); ++i)
        CHECK(found.losses[i] == Approx(expected.losses[i]).epsilon(0.01));
      INFO(found.program);
      CHECK(found.program.find("sums=") != std::string::npos);
      // Buffers that a collective sends do not become parts of a batch.
      if (layout != std::string("batch:a"))
        CHECK(found.program.find("kinds=[batch,") != std::string::npos);
    }
    CHECK(gpu.take_misuses().empty());
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
