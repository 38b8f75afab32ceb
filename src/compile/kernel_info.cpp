#include "compile/kernel_info.h"

#include "tessera/op.h"

namespace tessera {

std::set<const Op*> composite_kernels() {
  std::set<const Op*> kernels;
  for (const Op* op : all_ops()) {
    if (op->body && find_cpu_kernel(op->kernel)) kernels.insert(op);
  }
  return kernels;
}

int64_t workspace_bytes(const Step& step, int threads, double least_ns) {
  const KernelEntry* entry = find_cpu_kernel(step.kernel);
  return entry ? workspace_with_threads(*entry, step, threads, least_ns) : 0;
}

}  // namespace tessera
