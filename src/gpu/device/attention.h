// Attention by cuDNN.
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

  /// A step "attention" or "attention_grad". Null where the library has no such attention, or is
  /// not there: `why` says which.
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
