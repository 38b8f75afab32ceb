// One product of two matrices, in the form for CPU libraries.
#pragma once

#include <cstdint>

namespace tessera::kernels {

/// c[m, n] += a[m, k] b[k, n], where a(i, l) = a[i * a_row + l * a_column] and so on; each matrix
/// has a stride of 1 (or a size of 1) in one dim. c must be initialized.
struct Gemm {
  int64_t m = 1, n = 1, k = 1;
  int64_t a_row = 0, a_column = 0, b_row = 0, b_column = 0, c_row = 0, c_column = 0;
};

/// The same product as c^T = b^T a^T.
inline Gemm transposed(const Gemm& g) {
  return {g.n, g.m, g.k, g.b_column, g.b_row, g.a_column, g.a_row, g.c_column, g.c_row};
}

}  // namespace tessera::kernels
