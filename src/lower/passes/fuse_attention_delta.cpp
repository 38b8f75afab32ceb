//   p = pointwise(out, d_out) {row_sum(out d_out)}
//   dq, dk, dv = attention_grad(q, k, v, d_out, out, log_sum, p)
//     ->  dq, dk, dv = attention_grad(q, k, v, d_out, out, log_sum, log_sum) own_dot=1
#include "lower/passes/fuse_attention_delta.h"

#include <algorithm>

#include "lower/passes/drop_unused_buffers.h"
#include "lower/passes/fuse_merge.h"
#include "lower/passes/step_bounds.h"

namespace tessera {

namespace {

constexpr size_t kGradient = 3, kOut = 4, kLogSum = 5, kDot = 6;

/// The input that a register loads, as it is or cast; -1: none.
int loaded(const PointwiseProgram& program, int reg) {
  if (reg < 0) return -1;
  const Instr* instr = &program.code[static_cast<size_t>(reg)];
  if (instr->code == PointwiseOp::cast) instr = &program.code[static_cast<size_t>(instr->a)];
  return instr->code == PointwiseOp::load ? instr->slot : -1;
}

/// True if both show elements of a buffer from the same place on, as many of them.
bool same_elements(const View& x, const View& y) {
  const auto places = [](const View& v) {
    std::vector<std::pair<int64_t, int64_t>> dims;
    for (size_t d = 0; d < v.sizes.size(); ++d)
      if (v.sizes[d] > 1 && v.strides[d] != 0) dims.emplace_back(v.strides[d], v.sizes[d]);
    std::sort(dims.begin(), dims.end());
    return dims;
  };
  return x.buffer == y.buffer && x.dtype == y.dtype && x.offset == y.offset && x.shift == y.shift &&
         places(x) == places(y);
}

/// True if `step` computes operand 6 of `gradient` and nothing else.
bool is_dot(const Step& step, const Step& gradient) {
  const auto& code = step.pointwise.code;
  if (!is_pointwise(step) || step.out.size() != 1 || step.in.size() != 2) return false;
  const Instr& sum = code[static_cast<size_t>(step.pointwise.outputs[0])];
  if (sum.code != PointwiseOp::row_sum) return false;
  const Instr& product = code[static_cast<size_t>(sum.a)];
  if (product.code != PointwiseOp::mul) return false;
  const int a = loaded(step.pointwise, product.a), b = loaded(step.pointwise, product.b);
  if (a < 0 || b < 0 || a == b) return false;
  const View &x = step.in[static_cast<size_t>(a)], &y = step.in[static_cast<size_t>(b)],
             &out = gradient.in[kOut], &of_out = gradient.in[kGradient];
  return (same_elements(x, out) && same_elements(y, of_out)) ||
         (same_elements(y, out) && same_elements(x, of_out));
}

void drop_dots(const Program& program, Function& function,
               const std::function<bool(const Step&)>& may_own) {
  const std::vector<char> fixed = fixed_buffers(program, function);
  std::vector<int> uses(program.buffers.size(), 0), writer(program.buffers.size(), -1);
  for (size_t s = 0; s < function.steps.size(); ++s) {
    for (const View& v : function.steps[s].in) ++uses[static_cast<size_t>(v.buffer)];
    for (const View& v : function.steps[s].out) {
      ++uses[static_cast<size_t>(v.buffer)];
      writer[static_cast<size_t>(v.buffer)] = static_cast<int>(s);
    }
  }
  std::vector<char> gone(function.steps.size(), 0);
  for (Step& step : function.steps) {
    if (step.kernel != KernelKind::attention_grad || !may_own(step)) continue;
    const auto dot = static_cast<size_t>(step.in.at(kDot).buffer);
    const int maker = writer[dot];
    if (fixed[dot] != 0 || uses[dot] != 2 || maker < 0 ||
        !is_dot(function.steps[static_cast<size_t>(maker)], step))
      continue;
    step.in[kDot] = step.in[kLogSum];
    step.as<AttentionSpec>().own_dot = true;
    gone[static_cast<size_t>(maker)] = 1;
  }
  drop_steps(function, gone);
}

}  // namespace

void fuse_attention_delta(Program& program, const std::function<bool(const Step&)>& may_own) {
  for (Function* f : all_functions(program.functions)) drop_dots(program, *f, may_own);
  drop_unused_buffers(program);
}

}  // namespace tessera
