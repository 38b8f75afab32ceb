// Products of rows that lie anywhere: those of a group of a grouped matmul are multiplied, and
// written or added, where they are. A library would have them copied first. Columns of B are copied
// to a panel, so that strides that are powers of two, which fill few sets of a cache, cost little.
#pragma once

#include <cstdint>

namespace tessera::cpu {

/// c[i][j] += sum over l of a[i][l] b[l * b_row + j * b_column]. Rows are dense; one stride of B is
/// 1. Rows of C may be the same row more than once if they are not overwritten.
struct RowGemm {
  int64_t m = 0, n = 0, k = 0;
  const float* const* a = nullptr;
  const float* b = nullptr;
  int64_t b_row = 0, b_column = 0;
  float* const* c = nullptr;
  bool overwrite = false;
};

/// True if row_gemm() is faster than a library: from 32 rows, columns and terms on, with AVX2. With
/// AVX-512 it was not measured, and without either it has no kernel.
bool is_for_row_gemm(int64_t m, int64_t n, int64_t k);

/// Each element is a sum of one term after the other, in blocks of 512 terms, whatever the other
/// sizes.
void row_gemm(const RowGemm& g);

/// The loops for AVX2 and FMA: at most 256 rows and 512 terms.
void row_gemm_avx2(const RowGemm& g);

}  // namespace tessera::cpu
