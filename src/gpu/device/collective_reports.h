// Which collective of NCCL's ended last: so that an error can name where the ranks got stuck.
#pragma once

#include <string>
#include <vector>

#include "gpu/device/memory.h"

namespace tessera {

class CollectiveReports {
 public:
  CollectiveReports(const RankGpu& gpu, GpuMemory& memory) : gpu_(gpu), memory_(memory) {}
  CollectiveReports(const CollectiveReports&) = delete;

  /// A launch behind a collective that tells the host that it has ended.
  CudaLaunch make(const CallSite& site);
  /// "'loss' (call 3)", or "none".
  std::string last() const;

 private:
  const RankGpu& gpu_;
  GpuMemory& memory_;
  int64_t* ended_ = nullptr;         ///< pinned: the number of the report that came last
  std::vector<std::string> places_;  ///< of reports, by number
};

}  // namespace tessera
