// Graphs: what the compute stream is given, recorded once and replayed.
#pragma once

#include <functional>
#include <vector>

#include "gpu/device/streams.h"

namespace tessera {

class GpuGraphs {
 public:
  GpuGraphs(const RankGpu& gpu, const GpuStreams& streams) : gpu_(gpu), streams_(streams) {}
  GpuGraphs(const GpuGraphs&) = delete;

  /// See Device::capture(). The function works until release().
  std::function<void()> capture(const std::function<void()>& work);
  /// Once: nothing is replayed any more.
  void release();

 private:
  const RankGpu& gpu_;
  const GpuStreams& streams_;
  std::vector<CudaGraph> graphs_;
};

}  // namespace tessera
