// Merging two pointwise steps: the parts of the fusion passes.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "program/program.h"
#include "program/windows.h"

namespace tessera {

/// The largest step that fusion makes. The registers of a block then stay in the L1 cache, and
/// hardware can prefetch the inputs.
struct FuseLimits {
  size_t instructions = 48, inputs = 12;
  int64_t longest_row = 1 << 17;  ///< elements that a device reduces within a fused step
};

/// By buffer: 1 if it is also used outside of the function: it is not transient, is a port, or
/// belongs to the function around a loop's body.
std::vector<char> fixed_buffers(const Program& program, const Function& function);

/// A load of input `slot`.
Instr load_of(DType dtype, int slot = -1);
/// The program that computes what a reduction reduces; of one without, a load of its operand.
PointwiseProgram program_of_reduction(const Step& reduction);

/// A pointwise compute step.
bool is_pointwise(const Step& step);

/// A step of one instruction without inputs: constant, index or value. It is free to recompute.
struct Source {
  Instr instr;
  AffineExpr expr;
  View out;
};
/// The step as a Source, if it is one.
std::optional<Source> source_of(const Step& step);

/// `step` with the loads of buffers in `sources` replaced by their instruction. Merges equal
/// instructions, removes multiplications by 1 and drops unused inputs.
Step with_sources(const Step& step, const std::map<int, Source>& sources);

/// True if the steps have the same iteration space, together read at most `limits.inputs` inputs,
/// and share no buffer but inputs, except that `second` may read exactly the views that `first`
/// writes.
bool may_merge(const Step& first, const Step& second, const FuseLimits& limits);

/// One step that does `first`, then `second`, with bitwise equal results. Requires may_merge().
/// Nothing if the step would be too large.
std::optional<Step> merged(const Step& first, const Step& second, const FuseLimits& limits);

/// Pairs (k, j) with j < k: output k stores the same register as output j, in the same layout.
std::vector<std::pair<int, int>> equal_outputs(const Step& step);

/// Keeps the outputs for which keep(buffer) is true (perhaps none) and the instructions they need.
void keep_outputs(Step& step, const std::function<bool(int buffer)>& keep);

}  // namespace tessera
