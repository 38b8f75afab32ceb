// The NCCL groups that a rank has joined.
#pragma once

#include <map>

#include "gpu/device/graph_capture.h"

namespace tessera {

class GpuGroups {
 public:
  GpuGroups(const RankGpu& gpu, GpuGraphs& graphs) : gpu_(gpu), graphs_(graphs) {}
  GpuGroups(const GpuGroups&) = delete;

  /// The group of the ranks of `group`, joined at the first call: collective. Null where there is
  /// no NCCL or the group was aborted: `why` says so of NCCL.
  CudaGroup join(Communicator& group, std::string& why);
  /// After a join() that was not in vain.
  CudaNcclApi& nccl() const { return *nccl_; }
  /// True if collectives with other ranks may be enqueued.
  bool any() const { return !groups_.empty(); }
  /// The error that a call of a group ran into, or empty.
  std::string trouble() const;
  /// Ends all groups without waiting for peers, and releases the graphs before: NCCL waits in an
  /// abort for the end of the graphs that hold calls of the group. Once.
  void abort() noexcept;

 private:
  const RankGpu& gpu_;
  GpuGraphs& graphs_;
  CudaNcclApi* nccl_ = nullptr;
  std::map<Communicator*, CudaGroup> groups_;
};

}  // namespace tessera
