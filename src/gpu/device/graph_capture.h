// CUDA graphs: the work given to the compute stream, captured once and replayed.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "gpu/device/streams.h"

namespace tessera {

class GpuGraphs {
 public:
  GpuGraphs(const RankGpu& gpu, const GpuStreams& streams) : gpu_(gpu), streams_(streams) {}
  GpuGraphs(const GpuGraphs&) = delete;

  /// See Device::capture(). The returned function works until release(). Returns an empty one, and
  /// nothing has run, if the work cannot be captured. Throws what is wrong in other ways.
  std::function<void()> capture(const std::function<void()>& work);
  /// Why work is not captured, a line each.
  const std::set<std::string>& fallbacks() const { return fallbacks_; }
  /// Releases all graphs. None can be replayed after that.
  void release();

 private:
  const RankGpu& gpu_;
  const GpuStreams& streams_;
  std::vector<CudaGraph> graphs_;
  std::set<std::string> fallbacks_;
};

}  // namespace tessera
