// Which NCCL collective finished last, so that an error can say where the ranks hang.
#pragma once

#include <string>
#include <vector>

#include "gpu/device/memory.h"

namespace tessera {

class CollectiveReports {
 public:
  CollectiveReports(const RankGpu& gpu, GpuMemory& memory) : gpu_(gpu), memory_(memory) {}
  CollectiveReports(const CollectiveReports&) = delete;

  /// A launch after a collective that tells the host that the collective has finished.
  CudaLaunch make(const CallSite& site);
  /// "'loss' (call 3)", or "none".
  std::string last() const;

 private:
  const RankGpu& gpu_;
  GpuMemory& memory_;
  int64_t* ended_ = nullptr;         ///< pinned: number of the last collective to finish; 0: none
  std::vector<std::string> places_;  ///< descriptions, by number
};

}  // namespace tessera
