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

}  // namespace tessera::kernels
