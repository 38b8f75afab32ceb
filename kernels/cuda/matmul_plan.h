// How a contraction becomes cuBLASLt matmuls. Decided from sizes and strides only, so that
// compiling (the workspace) and binding come to the same plan.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "program/program.h"
#include "tessera/dtype.h"

namespace tessera::cuda {

/// C[m, n] = A[m, k] B[k, n] for `batch` matrices. A transposed operand is stored as [k, m] or [n,
/// k]; C is row-major. Leading dims and batch strides are elements.
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
  std::vector<int64_t> sizes, from, to;  ///< from: strides in the operand; to: in the copy
};

struct MatmulPlan {
  bool possible = false;  ///< false: the type is not floating, or no dim is contracted
  bool swapped = false;   ///< the library's A is the step's B: C is stored transposed
  Matrices matrices;
  Packed packed[3];  ///< a, b: copied before; c: after
  /// Offsets of a, b and c for each call, in elements, from the operand's (or its copy's) start.
  std::vector<std::array<int64_t, 3>> calls;
  int64_t workspace = 0;  ///< bytes
  /// If set, a and b are packed as bytes of these formats; their strides are bytes too.
  std::optional<std::array<Float8, 2>> float8;
};

/// `step` is a "matmul". Prefers the fewest packed operands, then the fewest bytes.
MatmulPlan plan_matmul(const Step& step);
/// The same with 8-bit operands, for a step whose operands hold 8-bit numbers. Both are packed with
/// the contracted dim dense, as the library requires. Not possible for sizes that it does not
/// support.
MatmulPlan plan_float8(const Step& step);

}  // namespace tessera::cuda
