// Matrix products by cuBLASLt, which is opened when the first one is prepared.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/cuda_api.h"

namespace tessera::cuda {

class Products {
 public:
  static constexpr int64_t kWorkspace = int64_t{32} << 20;  ///< what the library asks for on sm_90

  /// library: its path; empty: cuBLASLt where the loader finds it.
  explicit Products(const std::string& library = "");
  ~Products();
  /// Null for a type or layout that the library has no algorithm for. The algorithm is the first of
  /// the library's heuristic: the same on every rank, so that replicas stay equal.
  CudaProduct prepare(const CudaGemm& gemm, int card);
  /// Whether a product in 8 bits takes less time than one in 16, with the copies of its operands.
  static bool pays_in_bytes(const CudaGemm& gemm);
  /// "cuBLASLt 130100".
  std::string version();
  /// Of the heuristic, as hexadecimal numbers: the library's versions read their own.
  std::vector<std::string> algorithms(CudaProduct product, int most);
  bool use_algorithm(CudaProduct product, const std::string& algorithm);
  void run(CudaProduct product, const void* a, const void* b, const void* added, void* c,
           void* workspace, CudaStream stream);
  void release(CudaProduct product);

 private:
  struct Library;
  struct Product;
  Library& library();
  std::vector<cublasLtMatmulAlgo_t> find(const Product& product, int most);

  const std::string path_;
  std::mutex mutex_;
  std::unique_ptr<Library> library_;
};

}  // namespace tessera::cuda
