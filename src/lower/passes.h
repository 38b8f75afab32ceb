// The passes of lower, in order. Each is one function with one file; docs/concepts.md describes the
// forms between them.
//   home layouts (home.h) -> partition (partition.h) -> insert_masks -> localize -> fuse ->
//   end_products -> begin_reductions -> combine -> schedule -> chunk -> plan_memory
#pragma once

#include "lower/flow.h"
#include "lower/home.h"
#include "lower/lower.h"

namespace tessera {

/// Inserts masks where a consumer needs the padding of an operand to be the identity of its
/// reduction (or zero) and it is not known to be. Always a select, never a multiply. Stored tensors
/// get zero padding.
void insert_masks(Flow& flow, const HomeLayouts& homes);

/// Turns slices into buffers, views and steps.
Program localize(const Graph& graph, const Flow& flow, const HomeLayouts& homes);

/// Merges neighbouring pointwise steps over one iteration space into one step with several outputs.
void fuse(Program& program);

/// Makes pointwise instructions behind a product part of it, where `takes` says of the "contract"
/// with them as its pointwise program (kernels/cuda/epilogue.h) that the device can do it at once.
/// Without `takes` nothing changes. Sums in 16 bits are rounded less often than before.
void end_products(Program& program, const std::function<bool(const Step&)>& takes);

/// Makes the pointwise instructions that compute the operand of a "reduce" part of it, as its
/// pointwise program, where nobody else reads that operand and fewer bytes move. The bits are the
/// same.
void begin_reductions(Program& program);

/// Makes one exchange of collectives of one kind over the same axes that do not depend on each
/// other, up to a number of bytes that `prices` tell (at most `bucket_bytes` without); lets an
/// all_reduce work in place where its operand is not read again.
void combine(Program& program, int64_t bucket_bytes, const StepPrices& prices);

/// Starts collectives as early and awaits them as late as the order of steps allows without more
/// bytes alive at once than before.
void schedule(Program& program);

/// Cuts products whose result is summed over ranks, or whose operand is gathered, with their
/// collective: `chunks` parts where they divide, or for 0 as many as pay by `prices`. The
/// collective of one part runs while the next is computed. No element is computed otherwise. What a
/// product ends with stays part of its parts, where `takes` says so as in end_products().
void chunk(Program& program, int chunks, const StepPrices& prices,
           const std::function<bool(const Step&)>& takes = {});

/// Renumbers the buffers without those that no step and no port touches.
void drop_unused_buffers(Program& program);

/// Gives every buffer its place: persistent ones side by side, transient ones where their lives do
/// not overlap.
void plan_memory(Program& program);

}  // namespace tessera
