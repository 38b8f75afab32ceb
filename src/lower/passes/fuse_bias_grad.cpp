// The reduction moves to the matmul's place, up or down; the matmul stays. A matmul takes one.
#include "lower/passes/fuse_bias_grad.h"

#include <algorithm>
#include <map>
#include <optional>

#include "lower/passes/step_bounds.h"
#include "program/specs.h"

namespace tessera {

namespace {

using enum matmul_kinds::DimKind;

/// A sum of an operand as it is, or widened to float32.
bool is_sum(const Step& step) {
  if (step.kernel != KernelKind::reduce || step.combiner != Combiner::sum || step.in.size() != 1 ||
      !is_floating(step.in[0].dtype))
    return false;
  const auto& code = step.pointwise.code;
  return code.empty() || (code.size() == 2 && code[0].code == PointwiseOp::load &&
                          code[1].code == PointwiseOp::cast && code[1].dtype == DType::float32 &&
                          step.pointwise.outputs[0] == 1);
}

/// The matmul with the sums of operand x that `reduce` computes; nothing if it computes others.
std::optional<Step> with_sums(const Step& matmul, int x, const Step& reduce) {
  const View &operand = matmul.in[static_cast<size_t>(x)], &from = reduce.in[0],
             &to = reduce.out[0];
  if (operand.buffer != from.buffer || operand.dtype != from.dtype ||
      operand.offset != from.offset || operand.shift != from.shift)
    return {};
  const auto& kinds = matmul.as<MatmulSpec>().kinds;
  std::vector<char> taken(from.sizes.size(), 0);
  View sums = to;
  sums.sizes = operand.sizes;
  sums.strides.assign(operand.sizes.size(), 0);
  for (size_t d = 0; d < kinds.size(); ++d) {
    if (operand.sizes[d] == 1 || kinds[d] == (x == 0 ? kColumn : kRow)) continue;
    if (kinds[d] == kBatch) return {};
    bool found = false;
    for (size_t e = 0; e < from.sizes.size() && !found; ++e) {
      const bool is_reduced = to.sizes[e] == 1 || to.strides[e] == 0;
      found = taken[e] == 0 && from.sizes[e] == operand.sizes[d] &&
              from.strides[e] == operand.strides[d] && is_reduced == (kinds[d] == kSum);
      if (!found) continue;
      taken[e] = 1;
      sums.strides[d] = is_reduced ? 0 : to.strides[e];
    }
    if (!found) return {};
  }
  for (size_t e = 0; e < from.sizes.size(); ++e) {
    if (taken[e] == 0 && from.sizes[e] != 1) return {};
  }
  Step result = matmul;
  result.out.push_back(sums);
  result.as<MatmulSpec>().sums = x;
  return result;
}

class Sums {
 public:
  Sums(const Program& program, Function& function, const std::function<bool(const Step&)>& takes)
      : function_(function), takes_(takes), bounds_(program, function) {}

  void run() {
    std::multimap<int, int> reading;  // buffer -> matmul
    const int first = function_.early, last = function_.first_update - function_.late;
    for (int s = first; s < last; ++s) {
      const Step& step = at(s);
      if (step.kernel != KernelKind::matmul) continue;
      for (int x = 0; x < 2; ++x) reading.emplace(step.in[static_cast<size_t>(x)].buffer, s);
    }
    std::vector<char> gone(function_.steps.size(), 0);
    for (int s = first; s < last; ++s) {
      if (!is_sum(at(s))) continue;
      const auto [begin, end] = reading.equal_range(at(s).in[0].buffer);
      const auto taker = std::find_if(begin, end, [&](const auto& p) { return give(s, p.second); });
      if (taker != end) gone[static_cast<size_t>(s)] = 1;
    }
    drop_steps(function_, gone);
  }

 private:
  Step& at(int place) { return function_.steps[static_cast<size_t>(place)]; }

  /// Gives the sums of the step at `place` to a matmul if it can take them.
  bool give(int place, int matmul) {
    if (at(matmul).as<MatmulSpec>().sums >= 0) return false;
    const auto [after, before] = bounds_.of(place);
    if (matmul <= after || matmul >= before) return false;
    for (int x = 0; x < 2; ++x) {
      std::optional<Step> step = with_sums(at(matmul), x, at(place));
      if (!step || (takes_ && !takes_(*step))) continue;
      at(matmul) = std::move(*step);
      return true;
    }
    return false;
  }

  Function& function_;
  const std::function<bool(const Step&)>& takes_;
  StepBounds bounds_;
};

}  // namespace

void fuse_bias_grad(Program& program, const std::function<bool(const Step&)>& takes) {
  for (Function* f : all_functions(program.functions)) Sums(program, *f, takes).run();
}

}  // namespace tessera
