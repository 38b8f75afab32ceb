#include "api/kernel_info.h"

#include "kernels/kernel.h"
#include "tessera/op.h"

namespace tessera {

std::set<std::string> composite_kernels() {
  std::set<std::string> names;
  for (const Op* op : all_ops()) {
    if (op->body && find_cpu_kernel(op->name)) names.emplace(op->name);
  }
  return names;
}

int64_t workspace_bytes(const Step& step) {
  const KernelEntry* entry = find_cpu_kernel(step.kernel);
  return entry && entry->workspace_bytes ? entry->workspace_bytes(step) : 0;
}

}  // namespace tessera
