// Sums of a matmul's operand over what it contracts become its last output.
#include "lower/passes/fuse_bias_grad.h"

#include "kernels/cuda/epilogue.h"
#include "support/catch.h"

namespace tessera::test {

namespace TESSERA_FILE {

using namespace matmul_kinds;

constexpr int64_t kTokens = 32, kIn = 16, kHeads = 2, kHead = 8;

View view(int buffer, std::vector<int64_t> sizes, std::vector<int64_t> strides,
          DType dtype = DType::bfloat16) {
  return View{buffer, dtype, std::move(sizes), std::move(strides), 0, {}};
}

/// w_grad[i, h, d] = sum_t x[t, i] dy[t, h, d]: buffers 0 and 1 to 2.
Step product() {
  Step step;
  step.kernel = KernelKind::matmul;
  step.spec = MatmulSpec{{kRow, kColumn, kColumn, kSum}};
  const std::vector<int64_t> sizes{kIn, kHeads, kHead, kTokens};
  step.in = {view(0, sizes, {1, 0, 0, kIn}), view(1, sizes, {0, kHead, 1, kHeads * kHead})};
  step.out = {view(2, sizes, {kHeads * kHead, kHead, 1, 0})};
  return step;
}

/// b_grad[h, d] = sum_t dy[t, h, d], to buffer 3.
Step sums() {
  Step step;
  step.kernel = KernelKind::reduce;
  step.in = {view(1, {kHeads, kHead, kTokens}, {kHead, 1, kHeads * kHead})};
  step.out = {view(3, {kHeads, kHead, 1}, {kHead, 1, 0})};
  return step;
}

Step copy(int from, int to) {
  Step step;
  step.kernel = KernelKind::copy;
  step.in = {view(from, {kHead}, {1})};
  step.out = {view(to, {kHead}, {1})};
  return step;
}

std::vector<Step> taken(std::vector<Step> steps) {
  Program program;
  for (int b = 0; b < 6; ++b) program.buffers.push_back({"b", ArenaKind::transient, 4096, 0});
  const int count = static_cast<int>(steps.size());
  program.functions.push_back({"f", std::move(steps), {}, {}, false, count});
  fuse_bias_grad(program, cuda::takes_epilogue);
  CHECK(program.functions[0].first_update == static_cast<int>(program.functions[0].steps.size()));
  return program.functions[0].steps;
}

TEST_CASE("sums over what a matmul contracts are an output of the matmul") {
  for (const bool first : {false, true}) {
    const auto steps = first ? taken({sums(), product()}) : taken({product(), sums()});
    REQUIRE(steps.size() == 1);
    CHECK(steps[0].as<MatmulSpec>().sums == 1);
    REQUIRE(steps[0].out.size() == 2);
    CHECK(steps[0].out[1].buffer == 3);
    CHECK(steps[0].out[1].strides == std::vector<int64_t>{0, kHead, 1, 0});
  }
  Step wide = sums(), over_heads = sums(), largest = sums(), other = sums(), doubled = sums();
  Instr load, cast;
  load.code = PointwiseOp::load;
  load.slot = 0;
  load.dtype = DType::bfloat16;
  cast.code = PointwiseOp::cast;
  cast.a = 0;
  wide.pointwise = {{load, cast}, {1}};
  wide.out[0].dtype = DType::float32;
  Step widened = product();  // the library writes sums in the operands' dtype or the result's
  widened.pointwise = {{load, cast}, {1}};
  widened.out[0].dtype = DType::float32;
  CHECK(taken({wide, widened}).size() == 1);
  CHECK(taken({sums(), widened}).size() == 1);
  CHECK(taken({wide, product()}).size() == 2);
  over_heads.out[0] = view(3, {1, kHead, 1}, {0, 1, 0});
  largest.combiner = Combiner::max;
  other.in[0].offset = 8;
  doubled.in[0].strides[0] = 1;  // dims of other strides
  doubled.in[0].strides[1] = kHeads;
  for (const Step& step : {over_heads, largest, other, doubled})
    CHECK(taken({step, product()}).size() == 2);
  // Something reads the sums, or writes what is summed, between.
  CHECK(taken({sums(), copy(3, 4), product()}).size() == 3);
  CHECK(taken({sums(), copy(4, 1), product()}).size() == 3);
  CHECK(taken({product(), copy(4, 3), sums()}).size() == 3);
  // A matmul takes one.
  Step again = sums();
  again.out[0].buffer = 4;
  CHECK(taken({sums(), product(), again}).size() == 2);
  // A library has no sums in float64, none of rows that do not lie in their order.
  Step turned = sums();
  turned.out[0].strides = {1, kHeads, 0};
  CHECK(taken({turned, product()}).size() == 2);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
