// Collectives on GPU memory, in three ways.
//
//   groups   NCCL, if every rank has a GPU of its own (nccl_collective.h).
//   peers    ranks that are threads of this process, on GPUs with peer access: each reads the
//            others' memory in place (peer_collective.h).
//   staged   otherwise: through host memory and the ranks' own communicator
//            (staged_collective.h). Waits for the GPU.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gpu/device/kernels.h"
#include "gpu/device/wait.h"

namespace tessera {

class GpuCollectives {
 public:
  GpuCollectives(const RankGpu& gpu, GpuStreams& streams, GpuMemory& memory, GpuKernels& kernels,
                 GpuGroups& groups, CollectiveReports& reports, GpuWait& wait)
      : gpu_(gpu),
        streams_(streams),
        memory_(memory),
        kernels_(kernels),
        groups_(groups),
        reports_(reports),
        wait_(wait) {}
  GpuCollectives(const GpuCollectives&) = delete;

  /// See Device.
  std::unique_ptr<Operation> prepare(Communicator& group,
                                     const std::vector<Collective>& collectives);
  /// Which do not go the fastest way, and why, a line each.
  const std::set<std::string>& fallbacks() const { return fallbacks_; }

 private:
  bool reaches_peers(Communicator& group);

  const RankGpu& gpu_;
  GpuStreams& streams_;
  GpuMemory& memory_;
  GpuKernels& kernels_;
  GpuGroups& groups_;
  CollectiveReports& reports_;
  GpuWait& wait_;
  std::set<std::string> fallbacks_;
  std::map<Communicator*, bool> reached_;  ///< true: all GPUs of the group have peer access
};

}  // namespace tessera
