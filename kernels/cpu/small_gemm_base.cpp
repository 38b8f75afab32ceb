// The loops of small products for the build's instruction set. Standard headers come before the
// target pragma, so that none of their inline functions is compiled for it.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/fused_multiply_add.h"
#include "kernels/cpu/small_gemm.h"

namespace tessera::cpu {

namespace {
constexpr int kSmallVectorBytes = 16;
constexpr int kSmallRows = 2;  // whose sums are in registers
constexpr int64_t kSmallTerms = 512;
}  // namespace

#include "kernels/cpu/small_gemm.inc"

const SmallOps kSmallBaseOps = {"base", product};

}  // namespace tessera::cpu
