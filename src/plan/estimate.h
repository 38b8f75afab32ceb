// What a plan costs, about and at least, without lowering it. The search prices the plans whose
// estimates are best, and drops those whose bound is too high.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cost/cost.h"
#include "plan/step_summary.h"

namespace tessera {

/// The dims that each axis of a mesh is given to.
struct Assignment {
  Mesh mesh;
  std::vector<DimSet> picks;
  bool operator==(const Assignment& o) const {
    return picks == o.picks && mesh.axes() == o.mesh.axes();
  }
};

/// What is stored in slices, as ZeRO does: 1 optimizer state, 2 gradients too, 3 parameters too.
struct Storage {
  int stage = 0;
  std::vector<int> axes = {};  ///< the mesh axes that it is sliced over
  auto operator<=>(const Storage&) const = default;
};

/// Bytes of a rank.
struct MemoryEstimate {
  double stored = 0;     ///< parameters and state
  double transient = 0;  ///< everything else
  double kept = 0;       ///< of `transient`: from forward to backward
};

/// How often a step communicates parameters and gradients, and how.
struct Passes {
  double gathers = 1;     ///< all-gathers of each sliced parameter in a microbatch
  double gradients = 1;   ///< gradients of each parameter alive while microbatches are summed
  bool wide = false;      ///< gradients are reduced in float32
  bool each = false;      ///< gradients are reduced in each microbatch
  bool offloads = false;  ///< optimizer state is in host memory
};

class Estimates {
 public:
  /// Keeps references. microbatch_dim: the dim that microbatches split, "" for none.
  Estimates(const StepSummary& summary, const Machine& machine, const std::string& microbatch_dim,
            const Passes& passes);

  /// Seconds that every step takes: its matmuls, each split over all axes of its dims, at the
  /// machine's rate for matmuls of that size, microbatch after microbatch.
  double least(const Assignment& a, int64_t microbatches) const;
  /// Seconds of communication in a step, nothing overlapped.
  struct Communication {
    double held_up = 0;  ///< of activations: partial sums and gathered operands
    double beside = 0;   ///< of gradients and parameters, which can overlap with compute
    double once = 0;     ///< the least share of `beside`: once a step, whatever the microbatches
    double exposed = 0;  ///< the share of `held_up` that cannot overlap
  };
  Communication communication(const Assignment& a, const Storage& storage,
                              int64_t microbatches) const;
  MemoryEstimate memory(const Assignment& a, const Storage& storage, int64_t microbatches) const;
  /// The share of the parameters' bytes of which an axis leaves copies.
  double copies(const Assignment& a, int axis) const;
  /// The number of slices of each dim.
  std::vector<int64_t> cuts(const Assignment& a) const;

 private:
  double local(DimSet dims, const Assignment& a, int64_t microbatches) const;
  double bytes(const std::vector<Kept>& all, const Assignment& a, const Storage& storage,
               int64_t microbatches) const;
  const Costs& costs(const Mesh& mesh) const;
  double collective(CollectiveKind kind, double bytes, const std::vector<int>& axes,
                    const Mesh& mesh) const;
  const StepSummary& summary_;
  const Machine& machine_;
  int microbatch_dim_ = -1;
  Passes passes_;
  mutable std::map<std::string, Costs> costs_;
};

}  // namespace tessera
