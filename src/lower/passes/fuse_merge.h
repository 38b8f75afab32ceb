// Merging pointwise steps: what the passes that fuse are made of.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "program/program.h"

namespace tessera {

/// The largest pointwise step that fusion makes. A block of so many registers stays in the L1
/// cache; no processor prefetches so many inputs.
struct FuseLimits {
  size_t instructions = 48, inputs = 12;
};

/// Both views have the same sizes and the same element at every index.
bool same_window(const View& x, const View& y);

/// By buffer: 1 if it is also used outside of the function: it is stored, a port, or belongs to the
/// function around a body.
std::vector<char> fixed_buffers(const Program& program, const Function& function);

/// A pointwise compute step.
bool is_pointwise(const Step& step);

/// A step of one instruction that reads nothing: constant, index or value. It costs nothing to
/// recompute.
struct Source {
  Instr instr;
  IntExpr expr;
  View out;
};
/// The source that a pointwise step is, if it is one.
std::optional<Source> source_of(const Step& step);

/// `step` with the loads of buffers in `sources` replaced by their instruction, equal instructions
/// merged, multiplications by 1 left out and unused inputs dropped.
Step with_sources(const Step& step, const std::map<int, Source>& sources);

/// False if the iteration spaces differ, if a buffer that one of them writes is touched by the
/// other in any way but that `second` reads the very view that `first` writes, or if there would be
/// too many inputs.
bool may_merge(const Step& first, const Step& second, const FuseLimits& limits);

/// One step that does `first`, then `second`, which may_merge: results and their bits are the same.
/// Null if it would be too large.
std::optional<Step> merged(const Step& first, const Step& second, const FuseLimits& limits);

/// Pairs (k, earlier output) of outputs that are the same numbers in the same layout.
std::vector<std::pair<int, int>> equal_outputs(const Step& step);

/// Keeps the outputs for which keep(buffer) is true, and what they need; that may be none.
void keep_outputs(Step& step, const std::function<bool(int buffer)>& keep);

}  // namespace tessera
