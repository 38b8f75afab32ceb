#include "kernels/cpu/pointwise_ops.h"

#include <span>

#include "base/isa.h"

namespace tessera::cpu {

std::span<const BlockOps* const> usable_block_ops() {
  static constexpr const BlockOps* kAll[] = {&kBaseOps, &kAvx2Ops, &kAvx512Ops};
  return {kAll, static_cast<size_t>(cpu_isa()) + 1};
}

}  // namespace tessera::cpu
