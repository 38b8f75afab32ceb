// The passes of lower, in order. Each is one function with one file; docs/concepts.md describes the
// forms between them.
//   home layouts (home.h) -> partition (partition.h) -> insert_masks -> localize -> fuse ->
//   plan_memory
#pragma once

#include "lower/flow.h"
#include "lower/home.h"

namespace tessera {

/// Inserts masks where a consumer needs the padding of an operand to be the identity of its
/// reduction (or zero) and it is not known to be. Always a select, never a multiply. Stored tensors
/// get zero padding.
void insert_masks(Flow& flow, const HomeLayouts& homes);

/// Turns slices into buffers, views and steps.
Program localize(const Graph& graph, const Flow& flow, const HomeLayouts& homes);

/// Merges neighbouring pointwise steps over one iteration space into one step with several outputs.
void fuse(Program& program);

/// Gives every buffer its place: persistent ones side by side, transient ones where their lives do
/// not overlap.
void plan_memory(Program& program);

}  // namespace tessera
