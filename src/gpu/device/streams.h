// The two streams of a rank's GPU, the events that order them, and their order with the host
// program's stream.
#pragma once

#include <vector>

#include "gpu/device/rank_gpu.h"

namespace tessera {

class GpuStreams {
 public:
  /// The GPU must be current. Throws a usage error if the GPU cannot work with the host program's
  /// stream.
  explicit GpuStreams(const RankGpu& gpu);
  GpuStreams(const GpuStreams&) = delete;

  /// Kernels run on one, collectives on the other.
  CudaStream compute() const { return compute_; }
  CudaStream transfers() const { return transfers_; }
  /// An event that is released with the streams.
  CudaEvent make_event();
  /// Work enqueued on the compute stream from now on runs after the host program's work so far.
  void follow_loan();
  /// The host program's work from now on runs after the compute stream's work so far.
  void lead_loan();
  void release_events();
  void release_streams();

 private:
  const RankGpu& gpu_;
  CudaStreamApi& api_;
  CudaStream compute_ = nullptr, transfers_ = nullptr;
  CudaEvent lent_ = nullptr, led_ = nullptr;
  std::vector<CudaEvent> events_;
};

}  // namespace tessera
