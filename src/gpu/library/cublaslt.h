// CublasLt by cuBLASLt, which is opened when the first one is prepared.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gpu/device/cuda_blas.h"

namespace tessera::cuda {

class Contexts;
struct Driver;

class CublasLt final : public CudaBlasApi {
 public:
  static constexpr int64_t kWorkspace = int64_t{32} << 20;  ///< what the library asks for on sm_90

  /// path: of the library; empty: cuBLASLt where the loader finds it. Without a driver and contexts
  /// there is no library().
  CublasLt(const Driver* driver, const Contexts* contexts, const std::string& path = "");
  ~CublasLt() override;
  /// Null for a type or layout that the library has no algorithm for, and for 8 bits that do not
  /// pay. The algorithm is the first of the library's heuristic: the same on every rank, so that
  /// replicas stay equal.
  CudaMatmul prepare(const CudaGemm& gemm) override;
  /// The same, also where 8 bits do not pay.
  CudaMatmul prepare_always(const CudaGemm& gemm);
  std::string library() override;
  /// "cuBLASLt 130100".
  std::string version();
  /// Algorithms that the heuristic proposes, as hexadecimal numbers, which only the same version of
  /// the library can read.
  std::vector<std::string> algorithms(CudaMatmul matmul, int most) override;
  bool use_algorithm(CudaMatmul matmul, const std::string& algorithm) override;
  int64_t workspace() override { return kWorkspace; }
  void run(CudaMatmul matmul, const void* a, const void* b, const void* added, void* c,
           void* workspace, CudaStream stream) override;
  void release(CudaMatmul matmul) override;

 private:
  struct Calls;
  struct Matmul;
  Calls& calls();
  std::vector<cublasLtMatmulAlgo_t> find(const Matmul& matmul, int most);

  const Driver* driver_;
  const Contexts* contexts_;
  const std::string path_;
  std::mutex mutex_;
  std::unique_ptr<Calls> calls_;
};

}  // namespace tessera::cuda
