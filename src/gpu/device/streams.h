// The two streams of a rank's GPU, the events that order them, and their order with a stream that
// the host program lent.
#pragma once

#include <vector>

#include "gpu/device/rank_gpu.h"

namespace tessera {

class GpuStreams {
 public:
  /// The GPU is in use. Throws a usage error for a lent stream that the GPU cannot work with.
  explicit GpuStreams(const RankGpu& gpu);
  GpuStreams(const GpuStreams&) = delete;

  /// Kernels run in one, collectives in the other.
  CudaStream compute() const { return compute_; }
  CudaStream transfers() const { return transfers_; }
  /// An event that lives as long as the streams.
  CudaEvent make_event();
  /// What is enqueued for computing from now on comes after what the lent stream has.
  void follow_loan();
  /// And what the lent stream is given from now on comes after that.
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
