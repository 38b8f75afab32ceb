// How an op becomes a step: the local view of one use of an op, and the helpers that turn it into
// kernel operands.
#pragma once

#include <vector>

#include "program/program.h"
#include "tessera/op.h"

namespace tessera {

/// One op on one rank's slices. All vectors over factors have the order of space.factors.
struct EmitCall {
  const OpCall& call;
  const IndexSpace& space;
  std::vector<View> in, out;   ///< contiguous local slices, dims as in the shapes, sizes padded
  std::vector<int64_t> local;  ///< factors: elements on this rank
  std::vector<int64_t>
      logical;  ///< factors: global size without padding (the bound, where bounded)
  std::vector<AffineExpr> offset;  ///< factors: global index of the first local element
  std::vector<AffineExpr> extent;  ///< factors: actual global size
  const std::string& node_name;
  int seed_scalar, step_scalar;
  Step& step;
  const std::vector<int>& counters;  ///< by loop of the graph, the run-time scalar that counts

  int factor(const std::string& name) const;
};

/// The view of an operand over the given factors, in that order: the stride is 0 and, if `unit`,
/// the size 1 along factors that the operand lacks. `dims` is the operand's entry in the
/// IndexSpace.
View align(const EmitCall& call, const View& natural, const std::vector<std::vector<int>>& dims,
           const std::vector<int>& factors, bool unit = false);

/// All factors of the space, 0, 1, 2, ...
std::vector<int> all_factors(const EmitCall& call);

/// Fills step.in and step.out with views over all factors of the space (the default of Op::emit).
void emit_aligned(EmitCall& call);

/// The step of an op with a host function: aligned views, and the factors.
void emit_host(EmitCall& call);

}  // namespace tessera
