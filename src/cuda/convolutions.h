// Convolutions by cuDNN, which is large and opened when the first one is asked for.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "runtime/cuda_api.h"

namespace tessera::cuda {

class Convolutions {
 public:
  Convolutions();
  ~Convolutions();
  /// Why there are none; empty if there are.
  std::string why_not();
  /// Null where no algorithm with a fixed order of sums does with `most` bytes of workspace. Of the
  /// others the first of the library's heuristic, the same on every rank: nothing is measured.
  CudaConvolution prepare(const CudaConv& conv, int card, int64_t most);
  void run(CudaConvolution convolution, const void* first, const void* second, void* result,
           void* workspace, CudaStream stream);
  void release(CudaConvolution convolution);

 private:
  struct Library;
  struct Convolution;
  Library& library();

  std::mutex mutex_;
  std::unique_ptr<Library> library_;
};

}  // namespace tessera::cuda
