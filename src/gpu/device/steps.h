// How the steps of a Program run on a rank's GPU: with CUDA libraries, by generated kernels
// (kernels/cuda/generate.h), or else on the host. Records which steps could not run in the best
// way.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gpu/device/attention.h"
#include "gpu/device/convolution.h"
#include "gpu/device/matmul.h"
#include "gpu/device/wait.h"

namespace tessera {

class GpuSteps {
 public:
  GpuSteps(const RankGpu& gpu, const GpuStreams& streams, GpuMemory& memory, GpuWait& wait,
           GpuKernels& kernels)
      : gpu_(gpu),
        streams_(streams),
        memory_(memory),
        wait_(wait),
        kernels_(kernels),
        autotune_(gpu, streams, memory),
        matmuls_(gpu, streams, memory, kernels, autotune_),
        convolutions_(gpu, streams, memory, kernels),
        attention_(gpu, streams, kernels) {}
  GpuSteps(const GpuSteps&) = delete;

  /// See Device.
  std::unique_ptr<Kernel> bind(const KernelArgs& args);
  std::vector<std::string> fallbacks() const;
  /// Releases what the libraries prepared.
  void release();

 private:
  std::unique_ptr<Kernel> bind_ordered(const KernelArgs& args);
  void fall_back(const Step& step, const std::string& why);

  const RankGpu& gpu_;
  const GpuStreams& streams_;
  GpuMemory& memory_;
  GpuWait& wait_;
  GpuKernels& kernels_;
  GemmAutotune autotune_;
  GpuMatmuls matmuls_;
  GpuConvolutions convolutions_;
  GpuAttention attention_;
  std::set<std::string> fallbacks_;  ///< steps, with reasons
  int64_t bound_ = 0;
};

}  // namespace tessera
