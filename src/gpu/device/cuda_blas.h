// What the device needs from cuBLASLt: matmuls with epilogues.
#pragma once

#include <array>
#include <optional>

#include "gpu/device/cuda_types.h"

namespace tessera {

/// C = A B for a batch of row-major matrices: C[m, n] = sum_k A[m, k] B[k, n]. A transposed operand
/// is stored as [k, m] or [n, k]. Leading dims and batch strides are elements. Accumulates in
/// float32 (float64 for float64).
struct CudaGemm {
  DType dtype = DType::float32;
  bool tf32 = false;  ///< float32 operands are rounded to tf32
  int64_t m = 0, n = 0, k = 0, batch = 1;
  bool transposed_a = false, transposed_b = false;
  int64_t lda = 0, ldb = 0, ldc = 0;
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;
  /// Alignment of the addresses in all calls: bytes, powers of two up to 256.
  int64_t align_a = 1, align_b = 1, align_c = 1;
  /// The dtype of C, `added`, `bias`, `kept` and `before`: that of the operands, or float32 for
  /// 16-bit operands.
  DType result = DType::float32;
  /// C = act(A B + added + bias); parts that are null or false are left out. Matrices have the
  /// layout of C.
  bool adds = false;             ///< run() gets `added`, which may be C itself
  const void* bias = nullptr;    ///< one element per column
  bool gelu = false;             ///< the tanh form
  void* kept = nullptr;          ///< if not null: receives the operand of gelu
  const void* before = nullptr;  ///< if not null: act multiplies by the gradient of gelu here
  /// If not null: receives the sums of A or B over k, m or n for each matrix of the batch.
  void* sums = nullptr;
  bool sums_of_a = false;
  int64_t stride_sums = 0;           ///< elements from one matrix's to the next's
  DType sums_type = DType::float32;  ///< that of the operands, or of C
  /// 8-bit operands in these formats instead of dtype, a as [m, k] and b as [n, k]. The only
  /// epilogue is `adds`.
  std::optional<std::array<Float8, 2>> float8 = {};
};

class CudaBlasApi {
 public:
  virtual ~CudaBlasApi() = default;
  /// Returns null if the library has no such matmul, or if 8 bits would not pay for the conversion
  /// of the operands.
  virtual CudaMatmul prepare(const CudaGemm& gemm) = 0;
  /// Why there are no matmuls at all, and prepare() returns null; empty if there are.
  virtual std::string why_not() = 0;
  /// What a choice of algorithm is valid for: "cuBLASLt 130100 on NVIDIA H200, driver 13000".
  virtual std::string library() = 0;
  /// The algorithms that the library's heuristic expects to be fastest, best first, at most `most`.
  /// Each is a word that another process with the same library can use.
  virtual std::vector<std::string> algorithms(CudaMatmul matmul, int most) = 0;
  /// Makes run() use this algorithm instead of the heuristic's first. Returns false if that is not
  /// possible.
  virtual bool use_algorithm(CudaMatmul matmul, const std::string& algorithm) = 0;
  /// Bytes of GPU workspace that run() may use. One workspace serves all matmuls of a stream.
  virtual int64_t workspace() = 0;
  virtual void run(CudaMatmul matmul, const void* a, const void* b, const void* added, void* c,
                   void* workspace, CudaStream stream) = 0;
  virtual void release(CudaMatmul matmul) = 0;
};

}  // namespace tessera
