// CUDA graphs: the work given to the compute stream, captured once and replayed.
#pragma once

#include <functional>
#include <vector>

#include "gpu/device/streams.h"

namespace tessera {

class GpuGraphs {
 public:
  GpuGraphs(const RankGpu& gpu, const GpuStreams& streams) : gpu_(gpu), streams_(streams) {}
  GpuGraphs(const GpuGraphs&) = delete;

  /// See Device::capture(). The returned function works until release().
  std::function<void()> capture(const std::function<void()>& work);
  /// Releases all graphs. None can be replayed after that.
  void release();

 private:
  const RankGpu& gpu_;
  const GpuStreams& streams_;
  std::vector<CudaGraph> graphs_;
};

}  // namespace tessera
