#include "gpu/device/nccl_groups.h"

#include <utility>

#include "base/env.h"

namespace tessera {

CudaGroup GpuGroups::join(Communicator& group, std::string& why) {
  if (!gpu_.options.use_groups) {
    why = "ranks share a GPU";
    return nullptr;
  }
  const auto known = groups_.find(&group);
  why = "its NCCL group was aborted";
  if (known != groups_.end()) return known->second;
  const auto [without, is_new] = without_.try_emplace(&group);
  if (is_new) without->second = why_not(group);
  if (!without->second.empty()) {
    why = without->second;
    return nullptr;
  }
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

/// The same on all ranks of the group, but for the text. Collective.
std::string GpuGroups::why_not(Communicator& group) {
  std::string why = "TESSERA_NCCL is off";
  nccl_ = may_use_nccl() ? gpu_.api.nccl(why) : nullptr;
  if (group.on_all(nccl_ != nullptr, "ranks that have NCCL")) return "";
  return nccl_ != nullptr ? "another rank has no NCCL" : why;
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
