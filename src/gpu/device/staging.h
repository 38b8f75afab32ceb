// Pinned memory that copies to a GPU go through, so that the caller's memory is free when the call
// returns and the host waits for the GPU only where all of it is on its way.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "gpu/device/cuda_api.h"

namespace tessera {

class GpuStaging {
 public:
  /// `await` waits until the GPU has passed an event; its errors pass through copy().
  GpuStaging(CudaApi& api, std::function<void(CudaEvent)> await);
  /// Pending copies have ended, or the GPU has failed. The GPU is in use.
  ~GpuStaging();
  GpuStaging(const GpuStaging&) = delete;

  /// Copies `bytes` from any memory of the host to the GPU, in the order of the stream.
  void copy(void* to, const void* host, int64_t bytes, CudaStream stream);

 private:
  /// A ring: what is on its way lies between the end of the last copy and that of the first one.
  struct Pending {
    int64_t begin, end;
    CudaEvent passed;
  };
  char* room(int64_t bytes);
  void drop_first();

  CudaApi& api_;
  std::function<void(CudaEvent)> await_;
  char* memory_ = nullptr;
  int64_t next_ = 0;
  std::deque<Pending> pending_;
  std::vector<CudaEvent> free_;
};

}  // namespace tessera
