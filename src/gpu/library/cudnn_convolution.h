// Convolutions with cuDNN, which is large and opened at first use.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "gpu/device/cuda_dnn.h"

namespace tessera::cuda {

class CudnnConvolution final : public CudaConvolutionApi {
 public:
  /// `workspace`: bytes that a convolution may use.
  explicit CudnnConvolution(int64_t workspace);
  ~CudnnConvolution() override;
  /// Why it is not available; empty if it is.
  std::string why_not();
  /// Returns null if no deterministic algorithm fits into the workspace. Of the others takes the
  /// heuristic's first, the same on every rank: nothing is measured.
  CudaConvolution prepare(const CudaConv& conv) override;
  void run(CudaConvolution convolution, const void* first, const void* second, void* result,
           void* workspace, CudaStream stream) override;
  void release(CudaConvolution convolution) override;

 private:
  struct Library;
  struct Convolution;
  Library& library();

  const int64_t workspace_;
  std::mutex mutex_;
  std::unique_ptr<Library> library_;
};

}  // namespace tessera::cuda
