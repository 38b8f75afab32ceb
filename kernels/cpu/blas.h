// The only interface to the libraries of matmuls.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernels/common/gemm.h"
#include "tessera/dtype.h"

namespace tessera::cpu {

using kernels::Gemm;

/// The libraries and their build, for reports.
std::string blas_description();

/// Before a library is called: OpenBLAS, which has one number of threads for the whole process,
/// gets one, because ranks and their teams bring the threads; and oneDNN gets the instruction set.
void prepare_libraries();

/// c += a b, or c = a b if `overwrite` (c may then be uninitialized).
void gemm(const Gemm& g, const float* a, const float* b, float* c, bool overwrite);
void gemm(const Gemm& g, const double* a, const double* b, double* c, bool overwrite);

/// The same for bfloat16 matrices, accumulated in float32. c is bfloat16, or float32, which can
/// only be added to. Prepared once for its sizes and strides; used by one thread at a time.
class BfloatGemm {
 public:
  /// True if this processor has instructions for it and the build has a library that uses them.
  static bool is_fast();
  /// Nothing if the product is not thin, and is_fast() is false or the library declines.
  static std::optional<BfloatGemm> prepare(const Gemm& g, DType result);
  BfloatGemm(BfloatGemm&&) noexcept;
  ~BfloatGemm();
  void run(const void* a, const void* b, void* c, bool overwrite);

 private:
  BfloatGemm();
  struct State;
  static std::unique_ptr<State> library(const Gemm& g, DType result);
  Gemm thin_;  ///< of thin_gemm(), if there is no state
  DType result_ = DType::float32;
  std::unique_ptr<State> state_;  ///< of the library
  bool swapped_ = false;          ///< C^T = B^T A^T, so that C has contiguous rows
};

}  // namespace tessera::cpu
