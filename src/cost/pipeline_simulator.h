// Simulates the schedule of a pipeline with given times of its chunks of layers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cost/cost.h"
#include "program/pipeline_table.h"

namespace tessera {

/// Seconds of one microbatch in one chunk of the model.
struct ChunkTime {
  double forward = 0, backward = 0;
  double weights = 0;  ///< the part of backward that makes gradients of parameters
};

/// `stages` groups of devices. A stage has one chunk of the model or several; which ones, the
/// schedule says. A chunk sends its result to the next chunk.
struct Pipeline {
  std::string schedule = "1f1b";  ///< PipelineSchedule::name
  int stages = 1;
  std::vector<ChunkTime> chunks;  ///< a multiple of `stages`, in model order
  int64_t microbatches = 1;       ///< of several chunks: a multiple of `stages`
  double transfer = 0;            ///< seconds to send a chunk's result to the next device
  bool blocking = true;           ///< a device does not compute while it sends or receives
};

/// One work of a stage.
struct PipelineSpan {
  int stage = 0, chunk = 0;  ///< chunk: of the model
  int64_t microbatch = 0;
  StageWork work = StageWork::forward;
  double begin = 0, seconds = 0;
};

struct PipelineTime {
  double seconds = 0;
  std::vector<double> busy;       ///< by stage, seconds
  std::vector<double> stage_end;  ///< by stage: when its last backward ended
  std::vector<PipelineSpan> spans;
  /// 1 - the mean share of time in which stages are busy.
  double bubble() const;
};

/// Throws a usage error unless `stages` divides the number of chunks and, of several chunks, that
/// of microbatches, and for a schedule that does not take so many chunks.
PipelineTime simulate(const Pipeline& pipeline);

/// The times of chunks with `layers` layers each. `before` is added to the first chunk, `behind` to
/// the last.
std::vector<ChunkTime> assign_virtual_stages(const std::vector<int64_t>& layers,
                                             const ChunkTime& layer, const ChunkTime& before,
                                             const ChunkTime& behind);

/// The number of microbatches whose activations a stage keeps at its peak.
double microbatches_kept(const Pipeline& pipeline, int stage);

/// Seconds to send a rank's part of an activation (`bytes`) to the next stage along the axes
/// `stage`. Ranks along `copies` hold the same part: each sends its share, and the receivers
/// all-gather.
double hand_over(const Costs& costs, double bytes, const std::vector<int>& stage,
                 const std::vector<int>& copies);

}  // namespace tessera
