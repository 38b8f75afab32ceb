#include "gpu/device/nccl_groups.h"

#include <utility>

namespace tessera {

CudaGroup GpuGroups::join(Communicator& group, std::string& why) {
  if (!gpu_.options.use_groups) {
    why = "ranks share a GPU";
    return nullptr;
  }
  nccl_ = gpu_.api.nccl(why);
  if (nccl_ == nullptr) return nullptr;
  const auto known = groups_.find(&group);
  if (known != groups_.end()) return known->second;
  std::string id = group.rank() == 0 ? nccl_->group_id() : "";
  id.resize(128);
  Collective send;
  send.kind = CollectiveKind::broadcast;
  send.dtype = DType::uint8;
  send.out = id.data();
  send.count = 128;
  send.site.text = "joining a group of GPUs";
  group.run(send);
  return groups_[&group] = nccl_->join(id, group.rank(), group.size(), group.timeout());
}

std::string GpuGroups::trouble() const {
  for (const auto& [communicator, group] : groups_) {
    if (group == nullptr) continue;
    if (std::string trouble = nccl_->trouble(group); !trouble.empty()) return trouble;
  }
  return {};
}

void GpuGroups::abort() noexcept {
  try {
    graphs_.release();
  } catch (const std::exception&) {  // the GPU failed
  }
  for (auto& [communicator, group] : groups_) {
    if (group != nullptr) nccl_->abort(std::exchange(group, nullptr));
  }
}

}  // namespace tessera
