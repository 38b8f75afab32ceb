// What a plan costs at least, and about, without lowering it: which plans are worth a closer look,
// and which need none.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plan/cost.h"
#include "plan/outline.h"

namespace tessera {

/// The dims that each axis of a mesh is given to.
struct Assignment {
  Mesh mesh;
  std::vector<DimSet> picks;
  bool operator==(const Assignment& o) const {
    return picks == o.picks && mesh.axes() == o.mesh.axes();
  }
};

/// What is stored in parts, as ZeRO does: 1 optimizer state, 2 gradients too, 3 parameters too.
struct Storage {
  int stage = 0;
  std::vector<int> axes = {};  ///< of the mesh, over which
  auto operator<=>(const Storage&) const = default;
};

/// Bytes of a rank.
struct MemoryEstimate {
  double stored = 0;     ///< parameters and state
  double transient = 0;  ///< everything else
  double kept = 0;       ///< of it, from forward to backward
};

/// What a step does with all parameters.
struct Passes {
  double gathers = 1;     ///< a microbatch gathers those that are stored in parts so often
  double gradients = 1;   ///< so many gradients of each are there while they are added up
  bool wide = false;      ///< gradients travel in float32
  bool each = false;      ///< those of each microbatch are combined
  bool offloads = false;  ///< optimizer state is in memory of the host
};

class Estimates {
 public:
  /// Keeps references. part: the dim that microbatches cut, "" for none.
  Estimates(const Outline& outline, const Machine& machine, const std::string& part,
            const Passes& passes);

  /// Seconds that no step takes less: its products, each cut over all axes of its dims, at the
  /// machine's rate for products of that size, microbatch after microbatch.
  double least(const Assignment& a, int64_t microbatches) const;
  /// Seconds of exchanges, undisturbed.
  struct Exchanges {
    double held_up = 0;  ///< partial sums, and what is gathered because a result is not cut so
    double beside = 0;   ///< of gradients and storage: they can run beside computing
    double once = 0;     ///< of these, what every step does at least
    double awaited = 0;  ///< of what holds up, that beside which nothing is computed
  };
  Exchanges exchanges(const Assignment& a, const Storage& storage, int64_t microbatches) const;
  MemoryEstimate memory(const Assignment& a, const Storage& storage, int64_t microbatches) const;
  /// Bytes of parameters along which an axis leaves copies, as a share of all.
  double copies(const Assignment& a, int axis) const;
  /// By how much each dim is cut.
  std::vector<int64_t> cuts(const Assignment& a) const;

 private:
  double local(DimSet dims, const Assignment& a, int64_t microbatches) const;
  double bytes(const std::vector<Kept>& all, const Assignment& a, const Storage& storage,
               int64_t microbatches) const;
  const Costs& costs(const Mesh& mesh) const;
  double exchange(CollectiveKind kind, double bytes, const std::vector<int>& axes,
                  const Mesh& mesh) const;
  const Outline& outline_;
  const Machine& machine_;
  int part_ = -1;
  Passes passes_;
  mutable std::map<std::string, Costs> costs_;
};

}  // namespace tessera
