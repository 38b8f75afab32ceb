// CudaProfilerApi for NVIDIA's profilers, with NVTX's headers, which look for a profiler
// themselves.
#pragma once

#include "gpu/device/cuda_api.h"

namespace tessera::cuda {

class Nvtx final : public CudaProfilerApi {
 public:
  Nvtx();
  /// True if a profiler was attached at construction. If not, do not call the others.
  bool has_profiler() const { return domain_ != nullptr; }
  /// Nested ranges of the calling thread.
  void push_range(const char* text) override;
  void pop_range() override;

 private:
  void* domain_ = nullptr;
};

}  // namespace tessera::cuda
