// The layouts that people use: data parallelism, also over an outer axis (HSDP), experts over the
// data axis, tensor parallelism within a node, context parallelism, stages over nodes.
#pragma once

#include <set>
#include <vector>

#include "plan/candidates.h"

namespace tessera {

class KnownLayouts {
 public:
  /// Keeps a reference.
  explicit KnownLayouts(const Candidates& candidates);

  /// On any mesh of so many devices. An axis of the outer data ranks may split the examples that
  /// another one splits too, which Space leaves out.
  std::vector<Assignment> on_any_mesh(int64_t devices) const;
  /// Those of these assignments whose axes split what people split.
  std::vector<Assignment> among(const std::vector<Assignment>& all) const;

 private:
  DimSet with_experts() const;
  DimSet cheapest(bool of_params) const;
  double share_of_params(DimSet dims) const;
  double seconds(DimSet dims) const;
  bool divides(DimSet dims, int64_t size) const;
  void add_data(int64_t ranks, const std::vector<MeshAxis>& inner, const std::vector<DimSet>& picks,
                std::vector<Assignment>& all) const;

  const Candidates& candidates_;
  const StepSummary& summary_;
  DimSet examples_ = 0, experts_ = 0, tensor_ = 0, context_ = 0;
};

}  // namespace tessera
