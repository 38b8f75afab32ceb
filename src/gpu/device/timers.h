// Marks in the streams of a rank's GPU, and the times at which it passed them.
#pragma once

#include <vector>

#include "gpu/device/wait.h"

namespace tessera {

class GpuTimers {
 public:
  GpuTimers(const RankGpu& gpu, const GpuStreams& streams, GpuWait& wait)
      : api_(gpu.api.streams()), streams_(streams), wait_(wait) {}
  GpuTimers(const GpuTimers&) = delete;

  /// See Device.
  int mark(bool transfers);
  std::vector<double> marks();
  void release();

 private:
  CudaStreamApi& api_;
  const GpuStreams& streams_;
  GpuWait& wait_;
  std::vector<CudaEvent> timers_;  ///< the GPU passed the first one at `epoch_`
  size_t marks_ = 0;
  double epoch_ = 0;
};

}  // namespace tessera
