// A reduction moves down to the next one that it can join.
#include "lower/passes/merge_reductions.h"

#include <algorithm>
#include <optional>

#include "lower/passes/fuse_merge.h"
#include "lower/passes/step_bounds.h"

namespace tessera {

namespace {

constexpr int kReductionReach = 32;  ///< steps that a reduction may move down

/// A reduction that depends on nothing but its operands.
bool may_merge(const Step& step) {
  const auto& code = step.pointwise.code;
  return step.kernel == KernelKind::reduce && step.out.size() == 1 && step.exprs.empty() &&
         std::none_of(code.begin(), code.end(),
                      [](const Instr& instr) { return changes_with_layout(instr.code); });
}

/// One step with the results of both; nothing if they reduce other dims, or share no operand that
/// has all of them.
std::optional<Step> merged_reductions(const Step& first, const Step& second) {
  const View &x = first.out[0], &y = second.out[0];
  if (first.combiner != second.combiner || first.spec != second.spec ||
      first.unused != second.unused || x.dtype != y.dtype || x.sizes != y.sizes ||
      x.strides != y.strides || first.in[0].sizes != second.in[0].sizes)
    return {};
  Step both = first;
  both.pointwise = program_of_reduction(first);
  bool shares = false;
  std::vector<int> slots;
  for (const View& v : second.in) {
    const auto same = std::find_if(both.in.begin(), both.in.end(),
                                   [&](const View& w) { return same_window(v, w); });
    slots.push_back(static_cast<int>(same - both.in.begin()));
    if (same == both.in.end()) {
      both.in.push_back(v);
    } else {
      shares |= std::find(v.strides.begin(), v.strides.end(), 0) == v.strides.end();
    }
  }
  if (!shares) return {};
  const PointwiseProgram added = program_of_reduction(second);
  const int before = static_cast<int>(both.pointwise.code.size());
  for (Instr instr : added.code) {
    if (instr.code == PointwiseOp::load) instr.slot = slots[static_cast<size_t>(instr.slot)];
    for (int* reg : {&instr.a, &instr.b, &instr.c}) *reg += *reg < 0 ? 0 : before;
    both.pointwise.code.push_back(instr);
  }
  both.pointwise.outputs.push_back(added.outputs[0] + before);
  both.out.push_back(y);
  both.flops += second.flops;
  return both;
}

void merge_in(const Program& program, Function& function) {
  const StepBounds bounds(program, function);
  std::vector<char> gone(function.steps.size(), 0);
  const auto at = [&](int place) -> Step& { return function.steps[static_cast<size_t>(place)]; };
  const int last = function.first_update - function.late;
  for (int s = function.early; s < last; ++s) {
    if (!may_merge(at(s))) continue;
    const int reach = std::min({last, s + kReductionReach, bounds.of(s).second});
    for (int next = s + 1; next < reach; ++next) {
      if (!may_merge(at(next))) continue;
      std::optional<Step> both = merged_reductions(at(next), at(s));
      if (!both) continue;
      at(next) = std::move(*both);
      gone[static_cast<size_t>(s)] = 1;
      break;
    }
  }
  drop_steps(function, gone);
}

}  // namespace

void merge_reductions(Program& program) {
  for (Function* f : all_functions(program.functions)) merge_in(program, *f);
}

}  // namespace tessera
