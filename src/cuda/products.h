// Matrix products by cuBLASLt, which is opened when the first one is prepared.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "runtime/cuda_api.h"

namespace tessera::cuda {

class DriverApi;

class Products {
 public:
  explicit Products(DriverApi& driver);
  ~Products();
  /// Null for a type or layout that the library has no algorithm for. The algorithm is the first of
  /// the library's heuristic: the same on every rank, so that replicas stay equal.
  CudaProduct prepare(const CudaGemm& gemm, int card);
  void run(CudaProduct product, const void* a, const void* b, void* c, CudaStream stream);
  void release(CudaProduct product);

 private:
  struct Library;
  struct Product;
  Library& library();
  void* workspace(CudaStream stream);

  DriverApi& driver_;
  std::mutex mutex_;
  std::unique_ptr<Library> library_;
  std::map<CudaStream, void*> workspaces_;
};

}  // namespace tessera::cuda
