// The one door to the libraries of matrix products.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::cpu {

/// The libraries and how they were built, for reports.
std::string blas_description();

/// Every call computes on its caller's thread: ranks and their teams bring the threads. OpenBLAS
/// knows one number of threads for the whole process, which is set to 1 here.
void use_one_blas_thread();

/// c[m, n] += a[m, k] b[k, n], where a(i, l) = a[i * a_row + l * a_column] and so on; each matrix
/// has a stride of 1 (or a size of 1) in one dim. c must be initialized.
struct Gemm {
  int64_t m = 1, n = 1, k = 1;
  int64_t a_row = 0, a_column = 0, b_row = 0, b_column = 0, c_row = 0, c_column = 0;
};
/// The same, but c = a b if `overwrite`: then c may hold anything.
void gemm(const Gemm& g, const float* a, const float* b, float* c, bool overwrite);
void gemm(const Gemm& g, const double* a, const double* b, double* c, bool overwrite);

}  // namespace tessera::cpu
