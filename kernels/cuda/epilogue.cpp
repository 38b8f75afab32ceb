// Reads the program backwards, from its first output to the sum. Every instruction on the way must
// be a part of act(A B + added + bias); otherwise the program is refused.
#include "kernels/cuda/epilogue.h"

#include <algorithm>

#include "kernels/common/gemm_plan.h"

namespace tessera::cuda {

namespace {

bool is_16_bit(DType t) { return t == DType::bfloat16 || t == DType::float16; }

/// Reads a program backwards.
class Reader {
 public:
  explicit Reader(const Step& step) : step_(step), code_(step.pointwise.code) {}

  std::optional<Epilogue> read() {
    const auto& outputs = step_.pointwise.outputs;
    found_.sums = static_cast<int>(step_.as<MatmulSpec>().sums);
    const size_t stored = step_.out.size() - (found_.sums < 0 ? 0 : 1);
    if (code_.empty()) return stored == 1 ? std::optional(found_) : std::nullopt;
    if (outputs.empty() || outputs.size() > 2 || outputs.size() != stored) return {};
    int at = outputs[0];
    if (is(at, PointwiseOp::gelu)) {
      found_.gelu = true;
      at = code(at).a;
      if (outputs.size() == 2 && outputs[1] == at) found_.kept = 1;
    } else if (is(at, PointwiseOp::mul)) {
      at = without_gradient(at);
    }
    if (outputs.size() == 2 && found_.kept < 0) return {};
    while (at >= 0 && is(at, PointwiseOp::add)) at = without_addend(at);
    if (at >= 0 && is(at, PointwiseOp::cast)) at = code(at).a;
    if (at < 0 || !is(at, PointwiseOp::load) || code(at).slot != 0) return {};
    return found_;
  }

 private:
  const Instr& code(int at) const { return code_[static_cast<size_t>(at)]; }
  bool is(int at, PointwiseOp wanted) const { return code(at).code == wanted; }
  /// The number of the step's operand that is loaded at `at`; -1 if that is no such load.
  int operand(int at) const {
    return is(at, PointwiseOp::load) && code(at).slot > 0 ? code(at).slot + 1 : -1;
  }

  int without_gradient(int at) {
    for (const auto& [x, y] : {std::pair(code(at).a, code(at).b), {code(at).b, code(at).a}}) {
      if (!is(y, PointwiseOp::gelu_grad)) continue;
      found_.before = operand(code(y).a);
      return found_.before < 0 ? -1 : x;
    }
    return -1;
  }

  /// Strips an addition. The addend is a bias if it is constant along a dim of the result, else a
  /// matrix.
  int without_addend(int at) {
    for (const auto& [x, y] : {std::pair(code(at).a, code(at).b), {code(at).b, code(at).a}}) {
      const int k = operand(y);
      if (k < 0) continue;
      const View &in = step_.in[static_cast<size_t>(k)], &out = step_.out[0];
      bool repeats = false;
      for (size_t d = 0; d < in.sizes.size(); ++d)
        repeats |= out.strides[d] != 0 && out.sizes[d] > 1 && in.strides[d] == 0;
      int& place = repeats ? found_.bias : found_.added;
      if (place >= 0) return -1;
      place = k;
      return x;
    }
    return -1;
  }

  const Step& step_;
  const std::vector<Instr>& code_;
  Epilogue found_;
};

bool same_elements(const View& x, const View& out) {
  for (size_t d = 0; d < out.sizes.size(); ++d) {
    if (out.strides[d] != 0 && out.sizes[d] > 1 && x.strides[d] != out.strides[d]) return false;
  }
  return x.dtype == out.dtype;
}

/// True if it has one element per column of the library's matrix, in their order.
bool is_bias(const View& bias, const View& out, const std::vector<matmul_kinds::DimKind>& kinds,
             bool swapped) {
  const int64_t columns = swapped ? kernels::kRow : kernels::kColumn;
  for (size_t d = 0; d < kinds.size(); ++d) {
    if (out.strides[d] == 0 || out.sizes[d] == 1) continue;
    if (bias.strides[d] != (kinds[d] == columns ? out.strides[d] : 0)) return false;
  }
  return bias.dtype == out.dtype;
}

/// True if the sums of operand x, one for each row or column of the library's matrix, lie in their
/// order, and in one of the two dtypes that the library writes.
bool are_sums(const Step& step, int x, const MatmulPlan& plan) {
  const View &from = step.in[static_cast<size_t>(x)], &to = step.out.back();
  if (plan.packed[x].used || from.dtype == DType::float64) return false;
  if (to.dtype != from.dtype && to.dtype != step.out[0].dtype) return false;
  const auto& kinds = step.as<MatmulSpec>().kinds;
  const int64_t kept = x == kernels::kA ? kernels::kRow : kernels::kColumn;
  int64_t apart = 0;  // of neighbouring rows or columns, in the operand
  for (size_t d = 0; d < kinds.size(); ++d) {
    if (kinds[d] == kept && from.sizes[d] > 1)
      apart = apart == 0 ? from.strides[d] : std::min(apart, from.strides[d]);
  }
  for (size_t d = 0; d < kinds.size(); ++d) {
    if (kinds[d] == kept && from.sizes[d] > 1 && to.strides[d] * apart != from.strides[d])
      return false;
  }
  return true;
}

/// The library's calls of single matrices support any epilogue, those of batches only addends and
/// sums.
bool suits_plan(const Step& step, const Epilogue& e, const MatmulPlan& plan) {
  if (!plan.possible || plan.packed[2].used || plan.calls.size() != 1) return false;
  const View& out = step.out[0];
  const auto& kinds = step.as<MatmulSpec>().kinds;
  const auto view = [&](int k) -> const View& { return step.in[static_cast<size_t>(k)]; };
  const bool acts = e.gelu || e.before >= 0;
  if (e.sums >= 0 && (acts || e.bias >= 0 || !are_sums(step, e.sums, plan))) return false;
  if ((acts || e.bias >= 0) && plan.matrices.batch != 1) return false;
  if (acts && (!is_16_bit(out.dtype) || e.added >= 0 || (e.before >= 0 && e.bias >= 0)))
    return false;
  const bool has_side = e.kept >= 0 || e.before >= 0;
  if (has_side && (plan.matrices.n % 8 != 0 || plan.matrices.ldc % 8 != 0)) return false;
  if (e.kept >= 0 && !same_elements(step.out[1], out)) return false;
  if (e.before >= 0 && !same_elements(view(e.before), out)) return false;
  if (e.added >= 0 && !same_elements(view(e.added), out)) return false;
  return e.bias < 0 ||
         (out.dtype != DType::float64 && is_bias(view(e.bias), out, kinds, plan.swapped));
}

}  // namespace

std::optional<Epilogue> find_epilogue(const Step& step) {
  std::optional<Epilogue> found = Reader(step).read();
  const DType in = step.in.at(0).dtype, out = step.out.at(0).dtype;
  const bool widens = is_16_bit(in) && out == DType::float32;
  if (!found || !is_floating(in) || (in != out && !widens)) return {};
  if (!suits_plan(step, *found, plan_matmul(step))) return {};
  const auto& kinds = step.as<MatmulSpec>().kinds;
  for (size_t d = 0; found->sums >= 0 && d < kinds.size(); ++d) {
    if (kinds[d] == kernels::kBatch && step.out.back().sizes[d] > 1)
      found->stride_sums = step.out.back().strides[d];
  }
  return found;
}

bool takes_epilogue(const Step& step) { return find_epilogue(step).has_value(); }

std::optional<Step> sums_of_epilogue(const Step& step) {
  const auto x = step.as<MatmulSpec>().sums;
  if (x < 0) return {};
  Step sums;
  sums.kernel = KernelKind::reduce;
  sums.origin = step.origin;
  sums.in = {step.in[static_cast<size_t>(x)]};
  sums.out = {step.out.back()};
  const auto& kinds = step.as<MatmulSpec>().kinds;
  const int64_t other = x == kernels::kA ? kernels::kColumn : kernels::kRow;
  for (size_t d = 0; d < kinds.size(); ++d) {
    if (kinds[d] == other) sums.in[0].sizes[d] = sums.out[0].sizes[d] = 1;
    if (kinds[d] == kernels::kSum) sums.out[0].sizes[d] = 1;
  }
  if (sums.in[0].dtype != sums.out[0].dtype) {
    Instr load, cast;
    load.dtype = sums.in[0].dtype;
    load.code = PointwiseOp::load;
    load.slot = 0;
    cast.dtype = sums.out[0].dtype;
    cast.code = PointwiseOp::cast;
    cast.a = 0;
    sums.pointwise = {{load, cast}, {1}};
  }
  return sums;
}

std::optional<Step> rest_of_epilogue(const Step& step, const Epilogue& e) {
  if (e.bias < 0 && e.before < 0 && !e.gelu) return {};
  Step rest;
  rest.kernel = KernelKind::pointwise;
  rest.origin = step.origin;
  const auto without_sums = [&](View view) {
    for (size_t d = 0; d < view.sizes.size(); ++d) {
      if (step.out[0].strides[d] == 0) view.sizes[d] = 1;
    }
    return view;
  };
  for (const View& view : step.out) rest.out.push_back(without_sums(view));
  const DType type = step.out[0].dtype;
  auto& code = rest.pointwise.code;
  const auto add = [&](PointwiseOp what, int a, int b) {
    Instr instr;
    instr.code = what;
    instr.dtype = type;
    instr.a = a;
    instr.b = b;
    code.push_back(instr);
    return static_cast<int>(code.size()) - 1;
  };
  const auto load = [&](const View& view) {
    rest.in.push_back(without_sums(view));
    const int at = add(PointwiseOp::load, -1, -1);
    code.back().slot = static_cast<int>(rest.in.size()) - 1;
    return at;
  };
  int value = load(step.out[0]);
  if (e.bias >= 0) value = add(PointwiseOp::add, value, load(step.in[static_cast<size_t>(e.bias)]));
  const int before = value;
  if (e.gelu) value = add(PointwiseOp::gelu, value, -1);
  if (e.before >= 0) {
    const int slope = load(step.in[static_cast<size_t>(e.before)]);
    value = add(PointwiseOp::mul, value, add(PointwiseOp::gelu_grad, slope, -1));
  }
  rest.pointwise.outputs = {value};
  if (e.kept >= 0) rest.pointwise.outputs.push_back(before);
  return rest;
}

}  // namespace tessera::cuda
