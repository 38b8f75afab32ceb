// Contractions with cuBLASLt.
#pragma once

#include <memory>
#include <vector>

#include "gpu/device/gemm_autotune.h"
#include "kernels/cuda/matmul_plan.h"

namespace tessera {

class GpuMatmuls {
 public:
  GpuMatmuls(const RankGpu& gpu, const GpuStreams& streams, GpuMemory& memory, GpuKernels& kernels,
             GemmAutotune& autotune)
      : gpu_(gpu), streams_(streams), memory_(memory), kernels_(kernels), autotune_(autotune) {}
  GpuMatmuls(const GpuMatmuls&) = delete;

  /// Binds a step "matmul". Collective over the ranks, because of GemmAutotune::choose().
  std::unique_ptr<Kernel> bind(const KernelArgs& args);
  void release();

 private:
  /// Returns null if the library has no such matmul.
  CudaMatmul prepare(const CudaGemm& gemm);

  const RankGpu& gpu_;
  const GpuStreams& streams_;
  GpuMemory& memory_;
  GpuKernels& kernels_;
  GemmAutotune& autotune_;
  std::vector<CudaMatmul> prepared_;
};

}  // namespace tessera
