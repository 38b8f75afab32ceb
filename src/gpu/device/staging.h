// Pinned staging memory for copies to a GPU. The caller's memory is free when copy() returns, and
// the host only waits for the GPU if the staging memory is full.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "gpu/device/cuda_api.h"

namespace tessera {

class GpuStaging {
 public:
  /// `await` waits until the GPU has passed an event; copy() passes its errors on.
  GpuStaging(CudaApi& api, std::function<void(CudaEvent)> await);
  /// Requires that pending copies have finished or the GPU has failed, and that the GPU is current.
  ~GpuStaging();
  GpuStaging(const GpuStaging&) = delete;

  /// Copies `bytes` from any host memory to the GPU, in stream order.
  void copy(void* to, const void* host, int64_t bytes, CudaStream stream);

 private:
  /// A ring buffer: pending copies lie between the first one's begin and the last one's end.
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
