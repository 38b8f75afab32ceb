// How the host waits for a rank's GPU. Where other ranks take part in what is enqueued, it waits no
// longer than the ranks' time-out: a peer that died leaves a group's call without an end.
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

  /// Until the stream has run what it was given.
  void finish(CudaStream stream);
  /// Until the GPU has passed the event. Throws when a group is in trouble or the time is up, and
  /// aborts the groups before.
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
