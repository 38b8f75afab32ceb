// Which stages of a pipeline send to which in an exchange.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "program/slicing.h"
#include "tessera/mesh.h"

namespace tessera {

struct StageMessage {
  int from = 0, to = 0;  ///< stages
  double bytes = 0;
};

/// Stages are the ranks along one axis of a mesh. Of ranks that differ in other axes, which do the
/// same, the first stand for all.
class StageMessages {
 public:
  /// Keeps a reference.
  StageMessages(const Mesh& mesh, int axis);

  /// The coordinates of a stage.
  const std::vector<int>& coordinates(int stage) const {
    return coordinates_[static_cast<size_t>(stage)];
  }
  /// True if this is an exchange of slices between stages, and between no other ranks.
  bool are_sent_in(const Step& step) const;
  /// The messages of a bucket of such exchanges, in the order in which stages send them. `scalars`:
  /// the counters of loops, for exchanges of which each tick has another plan.
  std::vector<StageMessage> of(std::span<const Step> bucket, const int64_t* scalars);

 private:
  struct Exchange {
    Slicing from, to;
    bool is_fixed = false;                    ///< depends on no scalar
    std::vector<std::vector<Piece>> holders;  ///< what each stage has
    std::vector<double> bytes;                ///< [from, to]
    bool is_known = false;
  };
  Exchange& exchange_of(const Step& step);
  void plan(const Step& step, const int64_t* scalars, Exchange& exchange) const;

  const Mesh& mesh_;
  int axis_;
  std::vector<int> sizes_;  ///< of the mesh's axes
  std::vector<std::vector<int>> coordinates_;
  std::map<const Step*, Exchange> exchanges_;
};

}  // namespace tessera
