// Convolutions by cuDNN.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpu/device/kernels.h"

namespace tessera {

class GpuConvolutions {
 public:
  GpuConvolutions(const RankGpu& gpu, const GpuStreams& streams, GpuMemory& memory,
                  GpuKernels& kernels)
      : gpu_(gpu), streams_(streams), memory_(memory), kernels_(kernels) {}
  GpuConvolutions(const GpuConvolutions&) = delete;

  /// A step "conv". Null where the library has no such convolution, or is not there: `why` says
  /// which.
  std::unique_ptr<Kernel> bind(const KernelArgs& args, std::string& why);
  void release();

 private:
  const RankGpu& gpu_;
  const GpuStreams& streams_;
  GpuMemory& memory_;
  GpuKernels& kernels_;
  CudaConvolutionApi* library_ = nullptr;
  std::vector<CudaConvolution> prepared_;
};

}  // namespace tessera
