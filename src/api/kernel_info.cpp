#include "api/kernel_info.h"

#include <algorithm>
#include <thread>

#include "base/env.h"
#include "base/fail.h"
#include "tessera/op.h"

namespace tessera {

std::set<const Op*> composite_kernels() {
  std::set<const Op*> kernels;
  for (const Op* op : all_ops()) {
    if (op->body && find_cpu_kernel(op->name)) kernels.insert(op);
  }
  return kernels;
}

int64_t workspace_bytes(const Step& step, int threads, double least_ns) {
  const KernelEntry* entry = find_cpu_kernel(step.kernel);
  return entry ? workspace_with_team(*entry, step, threads, least_ns) : 0;
}

int threads_for(int asked, const Cluster& cluster) {
  require(asked >= 0, "threads_per_rank is {}; it is 1 or more, or 0 for the cores there are",
          asked);
  if (asked > 0) return asked;
  const int cores = usable_cores();
  if (cluster.local_ranks() == cluster.size()) return std::max(1, cores / cluster.size());
  const int all = static_cast<int>(std::thread::hardware_concurrency());
  const int local = read_environment().local_ranks;
  return local <= 0 ? 1 : std::clamp(all / local, 1, cores);  // bound ranks have their cores alone
}

}  // namespace tessera
