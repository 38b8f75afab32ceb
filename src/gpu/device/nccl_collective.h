// Collectives with NCCL, on the communication stream.
#pragma once

#include <vector>

#include "gpu/device/collective_reports.h"
#include "gpu/device/enqueued.h"
#include "gpu/device/nccl_groups.h"

namespace tessera {

class NcclCollective final : public Operation, public Enqueued {
 public:
  /// `joined` is the NCCL group of `ranks`.
  NcclCollective(const RankGpu& gpu, GpuStreams& streams, GpuGroups& groups,
                 CollectiveReports& reports, Communicator& ranks, CudaGroup joined,
                 const std::vector<Collective>& collectives);
  void start() override;
  void wait() override;
  /// True if NCCL supports the collective directly: no gaps between the ranks' parts, and a known
  /// operator.
  static bool can(const Collective& c);

 private:
  void call(CudaNcclApi& nccl, CudaStream stream);
  [[noreturn]] void give_up(const std::string& why);

  CudaApi& api_;
  const GpuStreams& streams_;
  GpuGroups& groups_;
  Communicator& ranks_;
  CudaGroup group_;
  std::vector<Collective> collectives_;
  CudaEvent ready_ = nullptr, done_ = nullptr;
  CudaLaunch report_;
};

}  // namespace tessera
