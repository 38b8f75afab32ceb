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

  /// A launch behind a collective that tells the host that the collective has finished.
  CudaLaunch make(const CallSite& site);
  /// "'loss' (call 3)", or "none".
  std::string last() const;

 private:
  const RankGpu& gpu_;
  GpuMemory& memory_;
  int64_t* ended_ =
      nullptr;  ///< pinned: the number of the last collective that finished, from 1; 0: none
  std::vector<std::string> places_;  ///< descriptions, by number
};

}  // namespace tessera
