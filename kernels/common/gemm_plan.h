// How a contraction is cut into matmuls. Decided from sizes and strides only, so that
// compiling (the workspace) and binding come to the same plan.
#pragma once

#include "kernels/common/gemm.h"
#include "kernels/common/nest.h"
#include "program/specs.h"

namespace tessera::kernels {

using enum matmul_kinds::DimKind;
enum Operand { kA = 0, kB = 1, kC = 2 };

struct GemmPlan {
  bool loops = false;  ///< no matmul: direct loops over all dims
  DType compute = DType::float32;
  Nest batch;  ///< operands A, B, C: matrices are packed once per index of these dims
  /// Packed operands are dense in the workspace and of `compute` type: sizes of the packed dims,
  /// their strides in the operand and in the workspace. offset: bytes into the workspace.
  bool packed[3] = {false, false, false};
  std::vector<int64_t> pack_sizes[3], pack_from[3], pack_to[3];
  int64_t offset[3] = {0, 0, 0};
  bool by_bfloat = false;  ///< operands are packed and multiplied as bfloat16
  int64_t workspace = 0;
  Nest outer;  ///< row and column dims outside the gemm: operands A, B, C (packed strides)
  Nest sums;   ///< contracted dims outside the gemm
  Gemm gemm;
};

/// sizes and strides: of the step's views A, B, C, all with the dims of `kinds`. by_bfloat: for
/// bfloat16 only, if BfloatGemm takes the product.
GemmPlan plan_gemm(const std::vector<matmul_kinds::DimKind>& kinds,
                   const std::vector<int64_t> (&sizes)[3], const std::vector<int64_t> (&strides)[3],
                   DType dtype, bool by_bfloat = false);

}  // namespace tessera::kernels
