// The parts of the fuse pass: steps made of steps, and what a pass over a whole function needs.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "runtime/program.h"

namespace tessera {

/// The greatest pointwise step that fuse makes: what a block of the interpreter keeps in the L1
/// cache, and more operands than any processor prefetches.
struct FuseLimits {
  size_t instructions = 48, inputs = 12;
};

/// Both views have the same sizes and the same element at every index.
bool same_window(const View& x, const View& y);

/// By buffer: it has a place beyond the function: stored, a port, or of the function around a body.
std::vector<char> fixed_buffers(const Program& program, const Function& function);

/// A pointwise compute step.
bool is_pointwise(const Step& step);

/// A step of one instruction that reads nothing: constant, index or value. Free to compute again.
struct Source {
  Instr instr;
  IntExpr expr;
  View out;
};
/// The source that a pointwise step is, if it is one.
std::optional<Source> source_of(const Step& step);

/// `step` with the loads of buffers in `sources` replaced by their instruction, equal instructions
/// merged, products with 1 left out and unused inputs dropped.
Step with_sources(const Step& step, const std::map<int, Source>& sources);

/// A reduction along one dense dim as a pointwise step of one row instruction; null if it is
/// another, or the rows are too long to keep.
std::optional<Step> row_step(const Step& reduce);

/// A pointwise step over the rows of `rows` (a step with row instructions) as one over its
/// elements; null if its iteration space is another.
std::optional<Step> along_row(const Step& step, const Step& rows);

/// Whether two pointwise steps over one iteration space have the same rows, if any.
bool rows_agree(const Step& first, const Step& second);

/// False if the iteration spaces differ, if a buffer that one of them writes is touched by the
/// other in any way but that `second` reads the very view that `first` writes, or if there would be
/// too many inputs.
bool may_merge(const Step& first, const Step& second, const FuseLimits& limits);

/// One step that does `first`, then `second`, which may_merge: results and their bits are the same.
/// Null if it would be too large.
std::optional<Step> merged(const Step& first, const Step& second, const FuseLimits& limits);

/// Pairs (k, earlier output) of outputs that are the same numbers in the same layout.
std::vector<std::pair<int, int>> equal_outputs(const Step& step);

/// Keeps the outputs for which keep(buffer), and what they need. The step has no outputs after this
/// if there is none.
void keep_outputs(Step& step, const std::function<bool(int buffer)>& keep);

/// Lets the steps that compute new values of stored tensors write them in place, where nothing can
/// see the difference, and moves them behind first_update.
void store_in_place(const Program& program, Function& function);

}  // namespace tessera
