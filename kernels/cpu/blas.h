// The one door to the libraries of matrix products.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernels/common/gemm.h"
#include "tessera/dtype.h"

namespace tessera::cpu {

using kernels::Gemm;

/// The libraries and how they were built, for reports.
std::string blas_description();

/// Every call computes on its caller's thread: ranks and their teams bring the threads. OpenBLAS
/// knows one number of threads for the whole process, which is set to 1 here.
void use_one_blas_thread();

/// c += a b, or c = a b if `overwrite`: then c may hold anything.
void gemm(const Gemm& g, const float* a, const float* b, float* c, bool overwrite);
void gemm(const Gemm& g, const double* a, const double* b, double* c, bool overwrite);

/// The same of bfloat16 matrices, summed in float32; c is bfloat16, or float32, to which only more
/// can be added. Prepared once for its sizes and strides; used by one thread at a time.
class BfloatGemm {
 public:
  /// True if the processor has bfloat16 instructions and the build a library that uses them.
  static bool is_fast();
  /// Nothing where the library declines.
  static std::optional<BfloatGemm> prepare(const Gemm& g, DType result);
  BfloatGemm(BfloatGemm&&) noexcept;
  ~BfloatGemm();
  void run(const void* a, const void* b, void* c, bool overwrite);

 private:
  BfloatGemm();
  struct State;
  std::unique_ptr<State> state_;
  bool swapped_ = false;  ///< C^T = B^T A^T, so that C has its elements in rows
};

}  // namespace tessera::cpu
