// Nvtx for NVIDIA's profilers, by NVTX's headers, which look for a profiler themselves.
#pragma once

#include "gpu/device/cuda_api.h"

namespace tessera::cuda {

class Nvtx final : public CudaProfilerApi {
 public:
  Nvtx();
  /// One was attached when this was made. If not, the others are not called.
  bool has_profiler() const { return domain_ != nullptr; }
  /// Ranges of the calling thread; they nest.
  void push_range(const char* text) override;
  void pop_range() override;

 private:
  void* domain_ = nullptr;
};

}  // namespace tessera::cuda
