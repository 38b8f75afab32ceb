// How a contraction is cut into matrix products: a decision from sizes and strides only, so that
// the compile half (the workspace) and the run half (bind) come to the same plan.
#pragma once

#include "kernels/common/gemm.h"
#include "kernels/common/nest.h"

namespace tessera::kernels {

enum DimKind : int64_t { kBatch = 0, kRow = 1, kColumn = 2, kSum = 3 };
enum Operand { kA = 0, kB = 1, kC = 2 };

struct ContractPlan {
  bool loops = false;  ///< no matrix product: direct loops over `all`
  DType compute = DType::float32;
  Nest batch;  ///< operands A, B, C: matrices are packed per index of these dims
  /// Packed operands are dense in the workspace, of `compute` type: sizes of the packed dims, their
  /// strides in the operand and in the workspace. offset: bytes into the workspace.
  bool packed[3] = {false, false, false};
  std::vector<int64_t> pack_sizes[3], pack_from[3], pack_to[3];
  int64_t offset[3] = {0, 0, 0};
  bool by_bfloat = false;  ///< operands are packed, and multiplied, as bfloat16
  int64_t workspace = 0;
  Nest outer;  ///< row and column dims beyond the gemm's: operands A, B, C (packed strides)
  Nest sums;   ///< summed dims beyond the gemm's
  Gemm gemm;
};

/// sizes and strides: of the step's views A, B, C, all with the dims of `kinds`. by_bfloat: of
/// bfloat16 only, where BfloatGemm is fast; its workspace is never more than without.
ContractPlan plan_contract(const std::vector<int64_t>& kinds,
                           const std::vector<int64_t> (&sizes)[3],
                           const std::vector<int64_t> (&strides)[3], DType dtype,
                           bool by_bfloat = false);

}  // namespace tessera::kernels
