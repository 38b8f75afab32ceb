// CudaBlasApi with cuBLASLt, which is opened at first use.
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
  static constexpr int64_t kWorkspace = int64_t{32} << 20;  ///< NVIDIA's recommendation for sm_90

  struct Options {
    std::string path = {};      ///< of the library; empty: cuBLASLt as found by the loader
    bool always_bytes = false;  ///< 8 bits are used even if they do not pay
    int64_t workspace = kWorkspace;
  };
  /// library() needs a driver and contexts.
  CublasLt(const Driver* driver, const Contexts* contexts, Options options);
  CublasLt(const Driver* driver, const Contexts* contexts)
      : CublasLt(driver, contexts, Options()) {}
  ~CublasLt() override;
  /// Returns null for a dtype or layout without an algorithm, and for 8 bits if they do not pay.
  /// The algorithm is the heuristic's first: the same on every rank, so that replicas stay bitwise
  /// equal.
  CudaMatmul prepare(const CudaGemm& gemm) override;
  std::string why_not() override;
  std::string library() override;
  /// "cuBLASLt 130100".
  std::string version();
  /// From the heuristic, as hexadecimal numbers that only the same library version can read.
  std::vector<std::string> algorithms(CudaMatmul matmul, int most) override;
  bool use_algorithm(CudaMatmul matmul, const std::string& algorithm) override;
  int64_t workspace() override { return options_.workspace; }
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
  const Options options_;
  std::mutex mutex_;
  std::unique_ptr<Calls> calls_;
};

}  // namespace tessera::cuda
