// What the device asks of cuBLASLt: matmuls with epilogues.
#pragma once

#include <array>
#include <optional>

#include "gpu/device/cuda_types.h"

namespace tessera {

/// C = A B for a batch of row-major matrices: C[m, n] = sum_k A[m, k] B[k, n]. A transposed operand
/// lies as [k, m] or [n, k]; leading dims and batch strides are elements. Sums are float32
/// (float64 for float64).
struct CudaGemm {
  DType dtype = DType::float32;
  bool tf32 = false;  ///< float32 operands are rounded to tf32
  int64_t m = 0, n = 0, k = 0, batch = 1;
  bool transposed_a = false, transposed_b = false;
  int64_t lda = 0, ldb = 0, ldc = 0;
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;
  /// Bytes, powers of two up to 256, that divide the addresses of all calls.
  int64_t align_a = 1, align_b = 1, align_c = 1;
  /// The dtype of C, `added` and `bias`: that of the operands, or float32 for 16-bit operands.
  DType result = DType::float32;
  /// C = act(A B + added + bias), where what is null or false is left out. Matrices lie as C does.
  bool adds = false;             ///< run() is given `added`, which may be C itself
  const void* bias = nullptr;    ///< an element a column
  bool gelu = false;             ///< the tanh form
  void* kept = nullptr;          ///< gets the operand of gelu
  const void* before = nullptr;  ///< act multiplies by the slope of gelu there
  /// The operands are numbers of 8 bits instead of dtype's, a as [m, k] and b as [n, k]; nothing
  /// but `adds` is done with their sums.
  std::optional<std::array<Float8, 2>> float8 = {};
};

class CudaBlasApi {
 public:
  virtual ~CudaBlasApi() = default;
  /// Null where the library has no such matmul, or one in 8 bits would not pay for the copies that
  /// it needs.
  virtual CudaMatmul prepare(const CudaGemm& gemm) = 0;
  /// What the library's algorithms are good for: "cuBLASLt 130100 on NVIDIA H200, driver 13000".
  virtual std::string library() = 0;
  /// The algorithms that the library expects to be fast for a matmul, the fastest first, at most
  /// `most`: a word each, which another process with the same library understands.
  virtual std::vector<std::string> algorithms(CudaMatmul matmul, int most) = 0;
  /// What run() uses from now on, instead of the first of them. False if it cannot.
  virtual bool use_algorithm(CudaMatmul matmul, const std::string& algorithm) = 0;
  /// Bytes of the GPU's memory that run() may use: one piece serves the matmuls of a stream.
  virtual int64_t workspace() = 0;
  virtual void run(CudaMatmul matmul, const void* a, const void* b, const void* added, void* c,
                   void* workspace, CudaStream stream) = 0;
  virtual void release(CudaMatmul matmul) = 0;
};

}  // namespace tessera
