// What the device asks of CUDA's driver. Streams run in order; a record() marks a place in a
// stream, and wait() makes another stream wait for the last such place. Nothing here waits but
// synchronize() and copies from the device to memory that allocate_host() did not give out.
#pragma once

#include "gpu/device/cuda_types.h"

namespace tessera {

/// The GPUs of this process, and which of them the calling thread uses.
class CudaContextApi {
 public:
  virtual ~CudaContextApi() = default;
  virtual std::vector<CudaGpu> gpus() = 0;
  /// The calling thread's calls are for this GPU from now on. Returns what restore() takes to give
  /// the thread the context back that it had.
  virtual void* use(int gpu) = 0;
  virtual void restore(void* context) = 0;
  /// True if kernels of `gpu` may read the memory of `other`. Both have been used.
  virtual bool reaches(int gpu, int other) = 0;
};

class CudaMemoryApi {
 public:
  virtual ~CudaMemoryApi() = default;
  /// Bytes that the thread's GPU has left.
  virtual int64_t free_memory() = 0;
  virtual void* allocate(int64_t bytes) = 0;
  virtual void release(void* memory) = 0;
  /// The GPU whose memory it is, or -1.
  virtual int gpu_of(const void* memory) = 0;
  /// Pinned memory of the host, which kernels may write.
  virtual void* allocate_host(int64_t bytes) = 0;
  virtual void release_host(void* memory) = 0;
  /// `host` is memory that allocate_host() gave out: from any other the driver may wait first, or
  /// read it after the call.
  virtual void to_device(void* to, const void* host, int64_t bytes, CudaStream stream) = 0;
  virtual void to_host(void* host, const void* from, int64_t bytes, CudaStream stream) = 0;
  virtual void clear(void* memory, int64_t bytes, CudaStream stream) = 0;
};

class CudaStreamApi {
 public:
  virtual ~CudaStreamApi() = default;
  virtual CudaStream make_stream() = 0;
  virtual void release(CudaStream stream) = 0;
  virtual void synchronize(CudaStream stream) = 0;
  /// Why the thread's GPU cannot work with a stream that another program made; empty if it can.
  virtual std::string why_not_adopted(CudaStream stream) = 0;
  /// True if work given to the stream is captured instead of run.
  virtual bool is_capturing(CudaStream stream) = 0;
  virtual CudaEvent make_event() = 0;
  /// An event that keeps the time; and the seconds between two that the GPU has passed.
  virtual CudaEvent make_timer() = 0;
  virtual double seconds_between(CudaEvent first, CudaEvent second) = 0;
  virtual void release(CudaEvent event) = 0;
  virtual void record(CudaEvent event, CudaStream stream) = 0;
  virtual void wait(CudaStream stream, CudaEvent event) = 0;
  /// True if the GPU has passed the event's last record: for waits with a time-out.
  virtual bool passed(CudaEvent event) = 0;
};

class CudaKernelApi {
 public:
  virtual ~CudaKernelApi() = default;
  /// The kernel of a translation unit (kernels/cuda/generate.h): compiled, or taken from the cache.
  virtual CudaKernel load(const std::string& text) = 0;
  virtual void launch(const CudaLaunch& launch, CudaStream stream) = 0;
};

class CudaGraphApi {
 public:
  virtual ~CudaGraphApi() = default;
  /// What `stream`, and streams that wait for its events, are given between the two calls is
  /// recorded instead of run.
  virtual void begin_capture(CudaStream stream) = 0;
  virtual CudaGraph end_capture(CudaStream stream) = 0;
  virtual void launch(CudaGraph graph, CudaStream stream) = 0;
  virtual void release(CudaGraph graph) = 0;
};

}  // namespace tessera
