// What the device needs from the CUDA driver. A stream runs in order. record() marks a place in a
// stream; wait() makes another stream wait for the last mark. No call blocks the host, except
// synchronize() and to_host() to memory that is not from allocate_host().
#pragma once

#include "gpu/device/cuda_types.h"

namespace tessera {

/// The GPUs of this process, and the one that the calling thread uses.
class CudaContextApi {
 public:
  virtual ~CudaContextApi() = default;
  virtual std::vector<CudaGpu> gpus() = 0;
  /// Makes this GPU current for the calling thread. Returns what restore() needs to bring the
  /// thread's former context back.
  virtual void* use(int gpu) = 0;
  virtual void restore(void* context) = 0;
  /// True if kernels on one GPU may read the memory of the other. Both must have been used.
  virtual bool reaches(int gpu, int other) = 0;
};

class CudaMemoryApi {
 public:
  virtual ~CudaMemoryApi() = default;
  /// Free bytes of the thread's GPU.
  virtual int64_t free_memory() = 0;
  virtual void* allocate(int64_t bytes) = 0;
  virtual void release(void* memory) = 0;
  /// The GPU that owns the memory, or -1.
  virtual int gpu_of(const void* memory) = 0;
  /// Pinned host memory, which kernels may write.
  virtual void* allocate_host(int64_t bytes) = 0;
  virtual void release_host(void* memory) = 0;
  /// `host` must be from allocate_host(): with other memory the driver might block, or read it
  /// after the call.
  virtual void to_device(void* to, const void* host, int64_t bytes, CudaStream stream) = 0;
  virtual void to_host(void* host, const void* from, int64_t bytes, CudaStream stream) = 0;
  virtual void clear(void* memory, int64_t bytes, CudaStream stream) = 0;
};

class CudaStreamApi {
 public:
  virtual ~CudaStreamApi() = default;
  virtual CudaStream make_stream() = 0;
  /// One whose work goes before that of other streams, where it can.
  virtual CudaStream make_urgent_stream() = 0;
  virtual void release(CudaStream stream) = 0;
  virtual void synchronize(CudaStream stream) = 0;
  /// Why the thread's GPU cannot work with another program's stream; empty if it can.
  virtual std::string why_not_adopted(CudaStream stream) = 0;
  /// True if the stream is being captured.
  virtual bool is_capturing(CudaStream stream) = 0;
  virtual CudaEvent make_event() = 0;
  /// An event that measures time, and the seconds between two events that the GPU has passed.
  virtual CudaEvent make_timer() = 0;
  virtual double seconds_between(CudaEvent first, CudaEvent second) = 0;
  virtual void release(CudaEvent event) = 0;
  virtual void record(CudaEvent event, CudaStream stream) = 0;
  virtual void wait(CudaStream stream, CudaEvent event) = 0;
  /// True if the GPU has passed the last mark of the event; for waits with a time-out.
  virtual bool passed(CudaEvent event) = 0;
};

class CudaKernelApi {
 public:
  virtual ~CudaKernelApi() = default;
  /// The kernel of a translation unit (kernels/cuda/generate.h): compiled, or from the cache.
  virtual CudaKernel load(const std::string& text) = 0;
  /// Files of the cache that were not used, each with the cause.
  virtual std::vector<std::string> ignored() = 0;
  /// Why the driver compiles kernels from PTX; empty if they come compiled for the GPU.
  virtual std::string why_from_ptx() = 0;
  virtual void launch(const CudaLaunch& launch, CudaStream stream) = 0;
};

class CudaGraphApi {
 public:
  virtual ~CudaGraphApi() = default;
  /// Between these two calls, work given to `stream`, and to streams that wait for its events, is
  /// captured instead of run.
  virtual void begin_capture(CudaStream stream) = 0;
  virtual CudaGraph end_capture(CudaStream stream) = 0;
  virtual void launch(CudaGraph graph, CudaStream stream) = 0;
  virtual void release(CudaGraph graph) = 0;
};

}  // namespace tessera
