// How the host waits for a rank's GPU. If other ranks take part in the enqueued work, a wait is
// bounded by the ranks' time-out, because the NCCL call of a dead peer never ends.
#pragma once

#include "gpu/device/collective_reports.h"
#include "gpu/device/nccl_groups.h"

namespace tessera {

class GpuWait {
 public:
  GpuWait(const RankGpu& gpu, GpuStreams& streams, GpuGroups& groups,
          const CollectiveReports& reports)
      : gpu_(gpu), streams_(streams), groups_(groups), reports_(reports) {}
  GpuWait(const GpuWait&) = delete;

  /// Waits until the stream has finished.
  void finish(CudaStream stream);
  /// Waits until the GPU has passed the event. If an NCCL group has an error or the time is up,
  /// aborts all groups and throws.
  void await(CudaEvent event);

 private:
  [[noreturn]] void give_up(const std::string& why);

  const RankGpu& gpu_;
  GpuStreams& streams_;
  GpuGroups& groups_;
  const CollectiveReports& reports_;
  CudaEvent finished_ = nullptr;
};

}  // namespace tessera
