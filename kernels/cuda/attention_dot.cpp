#include "kernels/cuda/attention_dot.h"

namespace tessera::cuda {

namespace {

constexpr size_t kGradient = 3, kOut = 4, kLogSum = 5;

/// Elements from the first to the last one that the operand shows.
template <class Operand>
int64_t extent(const Operand& operand) {
  int64_t last = 0;
  for (size_t d = 0; d < operand.sizes.size(); ++d)
    last += (operand.sizes[d] - 1) * operand.strides[d];
  return last + 1;
}

int add(Step& step, PointwiseOp code, DType dtype, int a = -1, int b = -1, int slot = -1) {
  Instr instr;
  instr.code = code;
  instr.dtype = dtype;
  instr.a = a;
  instr.b = b;
  instr.slot = slot;
  step.pointwise.code.push_back(instr);
  return static_cast<int>(step.pointwise.code.size()) - 1;
}

}  // namespace

bool computes_dot(const Step& step) {
  const auto* const attention = step.find<AttentionSpec>();
  return attention != nullptr && attention->own_dot;
}

int64_t attention_dot_bytes(const Step& step) {
  if (!computes_dot(step)) return 0;
  const View& sums = step.in.at(kLogSum);
  return extent(sums) * size_of(sums.dtype);
}

AttentionDot::AttentionDot(const KernelArgs& gradient, void* to) {
  result = gradient.in.at(kLogSum);
  result.data = to;
  args = gradient;
  args.in = {gradient.in.at(kOut), gradient.in.at(kGradient)};
  args.out = {result};
  const auto width = static_cast<size_t>(gradient.step->as<AttentionSpec>().key_dim);
  for (size_t d = 0; d < result.sizes.size(); ++d) {
    const bool is_one = args.in[0].strides[d] == 0;  // the keys
    for (TensorArg* operand : {&args.in[0], &args.in[1], &args.out[0]})
      if (is_one) operand->sizes[d] = 1;
  }
  args.out[0].strides[width] = 0;
  step.kind = StepKind::compute;
  step.kernel = KernelKind::pointwise;
  step.origin = gradient.step->origin;
  const DType wide = result.dtype;
  int factors[2];
  for (int k = 0; k < 2; ++k) {
    const DType dtype = args.in[static_cast<size_t>(k)].dtype;
    factors[k] = add(step, PointwiseOp::load, dtype, -1, -1, k);
    if (dtype != wide) factors[k] = add(step, PointwiseOp::cast, wide, factors[k]);
  }
  const int product = add(step, PointwiseOp::mul, wide, factors[0], factors[1]);
  step.pointwise.outputs = {
      add(step, PointwiseOp::row_sum, wide, product, -1, static_cast<int>(width))};
  args.step = &step;
}

}  // namespace tessera::cuda
