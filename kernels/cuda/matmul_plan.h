// How a contraction becomes matmuls of cuBLASLt's: from sizes and strides only, so
// that the compile half (the workspace) and the run half come to the same plan.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "program/program.h"
#include "tessera/dtype.h"

namespace tessera::cuda {

/// C[m, n] = A[m, k] B[k, n] for `batch` matrices. A transposed operand lies as [k, m] or [n, k];
/// C is row-major. Leading dims and strides between matrices are elements.
struct Matrices {
  int64_t m = 1, n = 1, k = 1, batch = 1;
  bool transposed_a = false, transposed_b = false;
  int64_t lda = 1, ldb = 1, ldc = 1;
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;
};

/// A dense copy of an operand in the workspace, at `offset` bytes.
struct Packed {
  bool used = false;
  int64_t offset = 0;
  std::vector<int64_t> sizes, from, to;  ///< strides in the operand and in the copy
};

struct MatmulPlan {
  bool possible = false;  ///< false: the type is not floating, or nothing is summed
  bool swapped = false;   ///< the library's A is the step's B: C lies transposed
  Matrices matrices;
  Packed packed[3];  ///< a, b: copied before; c: after
  /// One call each: elements from the start of a, b and c (packed ones: of the copy).
  std::vector<std::array<int64_t, 3>> calls;
  int64_t workspace = 0;  ///< bytes
  /// Packed a and b are bytes of these formats; their strides are, too.
  std::optional<std::array<Float8, 2>> float8;
};

/// `step` is a "contract". Fewest packed operands, then fewest bytes.
MatmulPlan plan_matmul(const Step& step);
/// The same in 8 bits, for a step whose operands hold such numbers: both are packed, with the
/// summed dim dense, which the library asks for. Impossible for sizes that it does not take.
MatmulPlan plan_float8(const Step& step);

}  // namespace tessera::cuda
