// Pipelines of stages, played event by event: 1F1B and interleaved 1F1B as Megatron-LM orders them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cost/cost.h"

namespace tessera {

/// One microbatch in one chunk of the model.
struct ChunkTime {
  double forward = 0, backward = 0;
};

/// `stages` groups of devices; stage s has the chunks s, s + stages, s + 2 stages, ... of the
/// model, one or several (interleaved). What a chunk makes goes to the next one.
struct Pipeline {
  int stages = 1;
  std::vector<ChunkTime> chunks;  ///< a multiple of `stages`, in model order
  int64_t microbatches = 1;       ///< interleaved: a multiple of `stages`
  double transfer = 0;            ///< of what a chunk makes, to the next device
  bool blocking = true;           ///< a device computes nothing while it sends or receives
};

/// What one stage does when.
struct PipelineSpan {
  int stage = 0, chunk = 0;
  int64_t microbatch = 0;
  bool is_forward = true;
  double begin = 0, seconds = 0;
};

struct PipelineTime {
  double seconds = 0;
  std::vector<double> busy;       ///< of each stage
  std::vector<double> stage_end;  ///< when its last backward ended
  std::vector<PipelineSpan> spans;
  /// 1 - the mean share of time in which stages are busy.
  double bubble() const;
};

/// Throws a usage error where chunks or microbatches do not divide as they must.
PipelineTime play_pipeline(const Pipeline& pipeline);

/// Chunks with so many layers each; what stands before and behind them goes to the first and the
/// last.
std::vector<ChunkTime> deal_layers(const std::vector<int64_t>& layers, const ChunkTime& layer,
                                   const ChunkTime& before, const ChunkTime& behind);

/// The most microbatches whose activations a stage holds at once.
double microbatches_held(const Pipeline& pipeline, int stage);

/// Seconds to hand over what a rank has of an activation, `bytes`, to the next stage along the axes
/// `stage`. Ranks along `copies` have the same: each sends its share, and the receivers gather.
double hand_over(const Costs& costs, double bytes, const std::vector<int>& stage,
                 const std::vector<int>& copies);

}  // namespace tessera
