// Attention with cuDNN.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpu/device/kernels.h"

namespace tessera {

class GpuAttention {
 public:
  GpuAttention(const RankGpu& gpu, const GpuStreams& streams, GpuKernels& kernels)
      : gpu_(gpu), streams_(streams), kernels_(kernels) {}
  GpuAttention(const GpuAttention&) = delete;

  /// Binds a step "attention" or "attention_grad". Returns null and sets `why` if cuDNN cannot
  /// compute it or is missing.
  std::unique_ptr<Kernel> bind(const KernelArgs& args, std::string& why);
  void release();

 private:
  const RankGpu& gpu_;
  const GpuStreams& streams_;
  GpuKernels& kernels_;
  CudaAttentionApi* library_ = nullptr;
  std::vector<CudaAttention> prepared_;
};

}  // namespace tessera
