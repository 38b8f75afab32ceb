// What the stages of a pipeline send to each other.
#pragma once

#include <utility>
#include <vector>

#include "lower/flow/flow.h"
#include "program/pipeline_table.h"

namespace tessera {

/// A pass of the table, and the loop over layers that it runs.
struct StagedLayers {
  size_t pass = 0;
  FlowNode* node = nullptr;
};

/// A value with a dim in front, which is split over `axes`.
FlowValue with_dim_in_front(FlowValue of, const Dim& dim, const std::vector<int>& axes = {});

/// Makes the loops, with a share, that bring the carries of layers to where they are used next.
class StageTransfers {
 public:
  /// `axis`: its ranks are the stages. Numbers of shares that send are from `next_id` on. Keeps
  /// references.
  StageTransfers(Flow& flow, const PipelineTable& table, int axis, int next_id)
      : flow_(flow), table_(table), axis_(axis), stages_(table.stages()), next_id_(next_id) {}

  /// For a pass at fixed distances: a stage uses what arrives in the tick in which it arrives.
  std::vector<FlowNode> to_next(const FlowNode& layers, const TickDistances& distances) const;
  /// For any table. `chunks`: passes in order, whose chunks are of the same layers. What arrives
  /// waits in one of several places, and lies in the layers' arrivals when the stage uses it.
  void add_arrivals(const std::vector<StagedLayers>& chunks);

  std::vector<FlowNode> sending, awaiting, taking;  ///< made by add_arrivals()

 private:
  struct Arrival {
    int64_t from, to;     ///< stages
    int64_t tick, taken;  ///< ticks
    int64_t place = 0;
    /// The tick in which all stages await it: that in which it is taken, if it is not too far off.
    int64_t awaited(int64_t stages) const { return std::min(taken, tick + stages / 2); }
  };
  /// What arrives in one tick and is awaited in one: an exchange.
  struct Sent {
    int64_t tick = 0, awaited = 0;
    std::vector<Arrival> arrivals = {};
  };

  std::vector<Arrival> arrivals_of(const std::vector<StagedLayers>& chunks) const;
  int64_t set_places(std::vector<Arrival>& arrivals) const;
  std::vector<std::vector<Sent>> lanes_of(const std::vector<Arrival>& arrivals) const;
  void add_lane(const std::vector<Sent>& lane, const FlowNode& layers);
  void copy_before(FlowNode& sending, FlowNode& move, int64_t copies);
  AffineExpr stage_before(const TickDistances& distances, int64_t rest) const;

  Flow& flow_;
  const PipelineTable& table_;
  const int axis_;
  const int64_t stages_;
  int next_id_;
};

/// A share of what is not layers: which iteration runs in which tick; on all ranks, or on a stage
/// along `axis` with a table [tick, stage].
PipelineShare share_of(std::vector<int64_t> table, int axis = -1);

}  // namespace tessera
