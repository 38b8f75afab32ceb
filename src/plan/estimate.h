// Estimates of a plan's time and memory, and a lower bound on its time, without lowering. The
// search prices the plans with the best estimates and drops those whose bound is too high.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cost/cost.h"
#include "plan/shared_work.h"
#include "plan/step_summary.h"

namespace tessera {

/// The dims that each axis of a mesh splits.
struct Assignment {
  Mesh mesh;
  std::vector<DimSet> picks;
  bool operator==(const Assignment& o) const {
    return picks == o.picks && mesh.axes() == o.mesh.axes();
  }
};

/// The ZeRO stage: 1 shards optimizer state, 2 gradients too, 3 parameters too.
struct Storage {
  int stage = 0;
  std::vector<int> axes = {};  ///< the mesh axes over which it shards
  auto operator<=>(const Storage&) const = default;
};

/// How a step's microbatches pass through it. Schedule and chunks are those of stages.
struct Microbatching {
  int64_t microbatches = 1;
  std::string schedule = "1f1b";
  int64_t chunks = 1;  ///< of layers that a stage has
  bool each = false;   ///< gradients are reduced after each microbatch
};

/// Bytes on a rank.
struct MemoryEstimate {
  double stored = 0;     ///< parameters and state
  double transient = 0;  ///< everything else
};

/// How often and how a step communicates parameters and gradients.
struct Passes {
  double gathers = 1;     ///< all-gathers of each sharded parameter per microbatch
  double gradients = 1;   ///< live gradients per parameter during gradient accumulation
  bool wide = false;      ///< gradients are reduced in float32
  bool offloads = false;  ///< optimizer state is in host memory
};

class Estimates {
 public:
  /// Keeps references. microbatch_dim: the dim that microbatches split, "" for none.
  Estimates(const StepSummary& summary, const Machine& machine, const std::string& microbatch_dim,
            const Passes& passes, SharedWork shared = {});

  /// A lower bound in seconds: all matmuls and other ops with known FLOPs, each split over all axes
  /// of its dims, at the machine's rate for that size, for all microbatches, and other work in
  /// equal shares. Stages compute their layers and wait while microbatches enter and leave.
  double least(const Assignment& a, const Microbatching& by) const;
  /// The least of that with any of these numbers of microbatches, ascending, and up to `chunks`.
  double least_of(const Assignment& a, const std::vector<int64_t>& microbatches,
                  const std::string& schedule, int64_t chunks) const;
  /// Seconds of communication in a step, nothing overlapped.
  struct Communication {
    double blocking = 0;      ///< of activations: partial sums and gathered operands
    double overlappable = 0;  ///< of gradients and parameters, which can overlap with compute
    double after = 0;         ///< of gradients after the last microbatch, beside nothing
    double lower_bound = 0;   ///< what is sure of `overlappable`, over the busiest set of axes
    double exposed = 0;       ///< the share of `blocking` that cannot overlap
  };
  Communication communication(const Assignment& a, const Storage& storage,
                              const Microbatching& by) const;
  MemoryEstimate memory(const Assignment& a, const Storage& storage, const Microbatching& by) const;
  /// The number of stages; 1: layers are not divided.
  int64_t stages(const Assignment& a) const;
  /// The share of the parameters' bytes that is replicated along an axis.
  double copies(const Assignment& a, int axis) const;
  /// The number of slices of each dim, negative where stages have slices: they wait for each other
  /// then.
  std::vector<int64_t> cuts(const Assignment& a) const;

 private:
  /// Seconds of collectives of activations.
  struct Activations {
    double blocking = 0, exposed = 0;
  };
  /// Seconds of collectives of all parameters.
  struct Parameters {
    double gather = 0, scatter = 0, reduce = 0;
    /// Of gradients that are partial for sure.
    double scatter_partial = 0, reduce_partial = 0;
  };
  /// What is known of the assignment that was asked about last; a search asks about one many times.
  struct Known {
    Assignment of;
    const Costs* costs = nullptr;
    std::map<int64_t, std::vector<double>> products;  ///< by microbatches: each work, once
    std::map<std::pair<int64_t, int64_t>, Activations> activations;  ///< microbatches, chunks
    std::map<std::vector<int>, Parameters> parameters;               ///< by axes of the storage
    std::map<std::tuple<const Kept*, std::vector<int>, int64_t>, double> bytes;
  };
  Known& known(const Assignment& a) const;
  const std::vector<double>& products(const Assignment& a, int64_t microbatches) const;
  Activations activations(const Assignment& a, const Microbatching& by) const;
  Parameters parameters(const Assignment& a, const Storage& storage) const;
  DimSet summed_in_gradient(const Kept& params) const;
  int64_t alike(const Assignment& a, DimSet dims) const;
  double local(DimSet dims, const Assignment& a, int64_t microbatches) const;
  double of_stage(const Assignment& a) const;
  double runs(const Work& w, const Assignment& a, const Microbatching& by) const;
  double share(const Kept& kept, const Assignment& a) const;
  double handing(const Assignment& a, const Microbatching& by) const;
  double bytes(const std::vector<Kept>& all, const Assignment& a, const Storage& storage,
               int64_t microbatches) const;
  double sum_of_bytes(const std::vector<Kept>& all, const Assignment& a, const Storage& storage,
                      int64_t microbatches) const;
  const Costs& costs(const Mesh& mesh) const;
  double collective(CollectiveKind kind, double bytes, const std::vector<int>& axes,
                    const Assignment& a) const;
  const StepSummary& summary_;
  const Machine& machine_;
  int microbatch_dim_ = -1;
  Passes passes_;
  SharedWork shared_;
  mutable std::map<std::string, Costs> costs_;
  mutable Known known_;
};

}  // namespace tessera
