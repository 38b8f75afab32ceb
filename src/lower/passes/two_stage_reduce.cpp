// The gradients' norm reads every gradient. In two steps, each is read once and no square is
// stored.
#include "lower/passes/two_stage_reduce.h"

#include <optional>

namespace tessera {

namespace {

constexpr int64_t kLeastElements = 65536;

/// The dim whose rows are reduced first; nothing if one step does all. 16-bit results of rows would
/// be rounded.
std::optional<size_t> row_of(const Step& step, int64_t longest_row) {
  if (step.kind != StepKind::compute || step.kernel != KernelKind::reduce || step.in.size() != 1 ||
      step.out.size() != 1 || !step.pointwise.code.empty())
    return {};
  const View &in = step.in[0], &out = step.out[0];
  if (!is_floating(in.dtype) || is_narrow(in.dtype) || out.elements() != 1 ||
      in.elements() < kLeastElements)
    return {};
  for (size_t d = 0; d < in.sizes.size(); ++d) {
    if (in.strides[d] == 1 && in.sizes[d] > 1)
      return in.sizes[d] <= longest_row ? std::optional(d) : std::nullopt;
  }
  return {};
}

}  // namespace

void two_stage_reduce(Program& program, int64_t longest_row) {
  for (Function* f : all_functions(program.functions)) {
    std::vector<Step> steps;
    int stores = 0;
    for (size_t s = 0; s <= f->steps.size(); ++s) {
      if (static_cast<int>(s) == f->first_update) stores = static_cast<int>(steps.size());
      if (s == f->steps.size()) break;
      Step& step = f->steps[s];
      if (const std::optional<size_t> row = row_of(step, longest_row)) {
        View rows = step.in[0];
        rows.sizes[*row] = 1;
        rows.offset = 0;
        rows.shift = {};
        int64_t elements = 1;
        for (size_t d = rows.sizes.size(); d-- > 0; elements *= rows.sizes[d])
          rows.strides[d] = elements;
        rows.buffer = static_cast<int>(program.buffers.size());
        program.buffers.push_back(
            {program.buffers[static_cast<size_t>(step.out[0].buffer)].name + ".rows",
             ArenaKind::transient, elements * size_of(rows.dtype), 0});
        Step first = step;
        first.out[0] = rows;
        step.in[0] = rows;
        step.flops = elements;
        steps.push_back(std::move(first));
      }
      steps.push_back(std::move(step));
    }
    f->steps = std::move(steps);
    f->first_update = stores;
  }
}

}  // namespace tessera
