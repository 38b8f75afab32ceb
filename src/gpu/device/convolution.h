// Convolutions with cuDNN.
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

  /// Binds a step "conv". Returns null and sets `why` if cuDNN cannot compute it or is missing.
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
