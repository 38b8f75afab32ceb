// The cuBLASLt epilogue of a matmul, derived from the pointwise program of a "matmul" step. Used
// when compiling (to place instructions there) and when binding, so that both agree.
//
// Load #0 of the program is the result of the matmul, in the operands' type; load #k is operand k +
// 1 of the step. The program's outputs are those of the step.
#pragma once

#include <optional>

#include "kernels/cuda/matmul_plan.h"

namespace tessera::cuda {

/// D = act(A B + added + bias); numbers are operands of the step, -1: none. act is nothing; gelu,
/// perhaps with its operand stored as a second output; or a multiplication by gelu_grad(before).
struct Epilogue {
  int added = -1, bias = -1, before = -1;
  bool gelu = false;
  int kept = -1;            ///< the output that receives the operand of gelu; -1: none
  int sums = -1;            ///< the operand whose sums over the contracted dims are the last output
  int64_t stride_sums = 0;  ///< elements from those of one matrix of the batch to the next's
};

/// The epilogue of a "matmul" with a pointwise program. Empty if the library cannot do it in one
/// call:
///   the result is stored as one call leaves it, in the operands' type or in float32;
///   `added` has the layout of the result;
///   `bias` has one element per column of the library's matrix;
///   gelu and its gradient need rows of a multiple of 8 elements, and 16-bit results, which hide
///   the error of the library's approximate tanh;
///   sums (attribute "sums", lower/passes/fuse_bias_grad.h) are contiguous, and of an operand
///   that is not packed, with no other part but `added`.
std::optional<Epilogue> find_epilogue(const Step& step);

/// If the library refuses the epilogue: the pointwise step for the rest of it, applied to a matmul
/// with `added` in output 0. Null if nothing is left.
std::optional<Step> rest_of_epilogue(const Step& step, const Epilogue& epilogue);

/// The same for its sums: a "reduce" of operand `sums`. Its workspace lies behind the matmul's.
std::optional<Step> sums_of_epilogue(const Step& step);

/// For compiling: true if the library supports `step`, which has a pointwise program or sums.
bool takes_epilogue(const Step& step);

}  // namespace tessera::cuda
