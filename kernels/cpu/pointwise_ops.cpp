#include "kernels/cpu/pointwise_ops.h"

#include <span>

namespace tessera::cpu {

std::span<const BlockOps* const> usable_block_ops() {
  static constexpr const BlockOps* kAll[] = {&kBaseOps, &kAvx2Ops, &kAvx512Ops};
#if defined(__x86_64__) && defined(__GNUC__)
  static const size_t usable = [] {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 1;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
               ? 3
               : 2;
  }();
#else
  static const size_t usable = 1;
#endif
  return {kAll, usable};
}

}  // namespace tessera::cpu
