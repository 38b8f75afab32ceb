// The ways to compute one op on a mesh, and what each costs.
#pragma once

#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "cost/cost.h"
#include "plan/tensor_layouts/flat_ops.h"
#include "plan/tensor_layouts/step_sum.h"

namespace tessera {

/// One way to compute an op. Each axis of the mesh splits the dims of one factor, or nothing, or is
/// one over which operands and result are partial.
struct OpSplit {
  std::vector<TensorLayout> in;   ///< per operand: where the op needs it
  std::vector<TensorLayout> out;  ///< per result: as computed
  double seconds = 0;             ///< of its steps, collectives inside a composite included
  LeastTimes least = {};          ///< of these: what no fusion takes away
};

/// Prices every way by lowering a graph with this op alone. Memoized by op, types and attributes.
class OpSplits {
 public:
  /// Ranks of an axis over which an op is computed blockwise: it is repeated for each slice.
  static constexpr int kMostSlices = 16;
  /// Keeps references. `kernels`: as for partition().
  OpSplits(const Costs& costs, std::set<const Op*> kernels);

  /// The ways to compute an op, none of which is another's with more seconds. References are valid
  /// as long as this object.
  const std::vector<OpSplit>& of(const FlatOps& all, const FlatOp& op);

 private:
  /// Dims that one axis may split together.
  using Names = std::vector<std::string>;
  struct Site;
  /// What an axis may split. `alone`: how many of these leave the op in one piece on a rank; the
  /// others have it computed blockwise.
  std::vector<Names> splittable(const OpCall& call, size_t& alone) const;
  std::vector<OpSplit> ways(const Site& site);
  void add(const Site& site, const std::vector<Names>& of_axes, const std::vector<int>& partial,
           uint32_t linear, std::vector<OpSplit>& ways);
  bool price(const Site& site, const std::string& rules, OpSplit& split);

  const Costs& costs_;
  std::set<const Op*> kernels_;
  std::unordered_map<std::string, std::vector<OpSplit>> known_;
};

}  // namespace tessera
