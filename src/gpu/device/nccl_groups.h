// The NCCL groups (communicators) that a rank has joined.
#pragma once

#include <map>

#include "gpu/device/graph_capture.h"

namespace tessera {

class GpuGroups {
 public:
  GpuGroups(const RankGpu& gpu, GpuGraphs& graphs) : gpu_(gpu), graphs_(graphs) {}
  GpuGroups(const GpuGroups&) = delete;

  /// The NCCL group of the ranks of `group`. Joined at the first call, which is collective. Returns
  /// null and sets `why` if NCCL is off or missing on one of them, or the groups were aborted.
  CudaGroup join(Communicator& group, std::string& why);
  /// Requires a successful join().
  CudaNcclApi& nccl() const { return *nccl_; }
  /// True if other ranks take part in enqueued work.
  bool any() const { return !groups_.empty(); }
  /// The asynchronous error of any group, or empty.
  std::string trouble() const;
  /// Ends all groups without waiting for peers. Releases the CUDA graphs first, because NCCL's
  /// abort waits for the end of graphs that hold its calls. Can be called again.
  void abort() noexcept;

 private:
  std::string why_not(Communicator& group);

  const RankGpu& gpu_;
  GpuGraphs& graphs_;
  CudaNcclApi* nccl_ = nullptr;
  std::map<Communicator*, CudaGroup> groups_;
  std::map<Communicator*, std::string> without_;  ///< why they have no NCCL group
};

}  // namespace tessera
