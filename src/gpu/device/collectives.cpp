#include "gpu/device/collectives.h"

#include <algorithm>

#include "gpu/device/nccl_collective.h"
#include "gpu/device/peer_collective.h"
#include "gpu/device/staged_collective.h"

namespace tessera {

/// True if every GPU of the group can read every other's memory; the same on all ranks. Collective.
bool GpuCollectives::reaches_peers(Communicator& group) {
  const auto known = reached_.find(&group);
  if (known != reached_.end()) return known->second;
  std::vector<int64_t> gpus(static_cast<size_t>(group.size()));
  const int64_t mine = gpu_.number;
  Collective gather;
  gather.kind = CollectiveKind::all_gather;
  gather.dtype = DType::int64;
  gather.in = &mine;
  gather.out = gpus.data();
  gather.inner = 1;
  gather.site.text = "GPUs of peers";
  group.run(gather);
  bool all = true;
  for (int64_t from : gpus) {
    for (int64_t to : gpus)
      all = all && gpu_.api.contexts().reaches(static_cast<int>(from), static_cast<int>(to));
  }
  return reached_[&group] = all;
}

std::unique_ptr<Operation> GpuCollectives::prepare(Communicator& group,
                                                   const std::vector<Collective>& collectives) {
  const UseGpu here(gpu_);
  auto all = [&](auto can) { return std::all_of(collectives.begin(), collectives.end(), can); };
  std::string why = "neither NCCL nor peer access does this kind";
  const bool has_kind = all(NcclCollective::can);
  if (has_kind) {
    if (CudaGroup joined = groups_.join(group, why)) {
      return std::make_unique<NcclCollective>(gpu_, streams_, groups_, reports_, group, joined,
                                              collectives);
    }
  }
  const bool by_peers =
      std::string(group.backend()) == "threads" && all(PeerCollective::can) && reaches_peers(group);
  if (gpu_.options.use_groups && (has_kind || !by_peers)) {
    fallbacks_.insert(fmt::format(
        "{} {}: {}", has_kind ? "collectives" : fmt::format("[{}]", collectives[0].site.text),
        by_peers   ? "read the memory of peers"
        : has_kind ? "go through host memory"
                   : "goes through host memory",
        why));
  }
  if (by_peers)
    return std::make_unique<PeerCollective>(gpu_, streams_, memory_, kernels_, group, collectives);
  return std::make_unique<StagedCollective>(gpu_, streams_, memory_, wait_, group, collectives,
                                            why);
}

}  // namespace tessera
