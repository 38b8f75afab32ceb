// Tiles of sums in one order for the build's instruction set. It need not have fused
// multiplication, so that the C library multiplies and adds each element.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/fused_multiply_add.h"
#include "kernels/cpu/ordered_gemm.h"

namespace tessera::cpu {

namespace {
constexpr int kTileBytes = 16, kTileRows = 2, kShortLeaf = 2;
template <class Vector>
Vector multiply_add(Vector a, Vector b, Vector c) {
  for (size_t i = 0; i < sizeof(a) / sizeof(a[0]); ++i) c[i] = std::fma(a[i], b[i], c[i]);
  return c;
}
}  // namespace

#include "kernels/cpu/ordered_gemm.inc"

const OrderedOps kOrderedBaseOps = ordered_ops("base");

}  // namespace tessera::cpu
