// The loops of thin products for the build's instruction set. Standard headers come before the
// target pragma, so that none of their inline functions is compiled for it.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/common/types.h"
#include "kernels/cpu/fused_multiply_add.h"
#include "kernels/cpu/thin_gemm.h"

namespace tessera::cpu {

using namespace kernels;

namespace {
constexpr int kThinVectorBytes = 16;
// Columns of B and rows of A of a block, whose sums are in registers; rows of B that are streams.
constexpr int kThinColumns = 2, kThinRows = 1, kThinDepth = 4;
}  // namespace

#include "kernels/cpu/thin_gemm.inc"

const ThinOps kThinBaseOps = {"base", product_float, product_bfloat, product_rounded};

}  // namespace tessera::cpu
