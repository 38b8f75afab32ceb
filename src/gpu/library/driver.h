// libcuda, opened at run time: its functions, and the driver's interfaces built on them.
#pragma once

#include <cuda.h>

#include <map>
#include <mutex>

#include "gpu/device/cuda_driver.h"
#include "gpu/library/nvrtc.h"
#include "gpu/library/shared_library.h"

namespace tessera::cuda {

/// The driver functions that are used.
struct Driver {
  Library library{{"libcuda.so.1"}};
#define TESSERA_MEMBER(name) decltype(&::name) name##_;
#include "gpu/library/driver.inc"
#undef TESSERA_MEMBER
  Driver();
  void check(CUresult result, const char* call, int line) const;
};

/// The GPU that the calling thread uses.
int current_gpu();

class Contexts final : public CudaContextApi {
 public:
  /// Throws unsupported, with the reason, if no GPU can be used.
  explicit Contexts(const Driver& driver);
  std::vector<CudaGpu> gpus() override { return gpus_; }
  void* use(int gpu) override;
  void restore(void* context) override;
  bool reaches(int gpu, int other) override;
  /// The GPU of the calling thread.
  const CudaGpu& current() const { return gpus_[static_cast<size_t>(current_gpu())]; }
  /// The GPU whose primary context it is, if that has been used; else -1.
  int gpu_of(CUcontext context);

 private:
  bool can_reach(int gpu, int other) const;
  void enable_access(CUcontext from, CUcontext to) const;

  const Driver& driver_;
  std::vector<CudaGpu> gpus_;
  std::mutex mutex_;
  std::vector<CUcontext> contexts_;
};

class Memory final : public CudaMemoryApi {
 public:
  explicit Memory(const Driver& driver) : driver_(driver) {}
  int64_t free_memory() override;
  void* allocate(int64_t bytes) override;
  void release(void* memory) override;
  int gpu_of(const void* memory) override;
  void* allocate_host(int64_t bytes) override;
  void release_host(void* memory) override;
  void to_device(void* to, const void* host, int64_t bytes, CudaStream stream) override;
  void to_host(void* host, const void* from, int64_t bytes, CudaStream stream) override;
  void clear(void* memory, int64_t bytes, CudaStream stream) override;

 private:
  const Driver& driver_;
};

class Streams final : public CudaStreamApi {
 public:
  Streams(const Driver& driver, Contexts& contexts) : driver_(driver), contexts_(contexts) {}
  CudaStream make_stream() override;
  CudaStream make_urgent_stream() override;
  void release(CudaStream stream) override;
  void synchronize(CudaStream stream) override;
  std::string why_not_adopted(CudaStream stream) override;
  bool is_capturing(CudaStream stream) override;
  CudaEvent make_event() override;
  CudaEvent make_timer() override;
  double seconds_between(CudaEvent first, CudaEvent second) override;
  void release(CudaEvent event) override;
  void record(CudaEvent event, CudaStream stream) override;
  void wait(CudaStream stream, CudaEvent event) override;
  bool passed(CudaEvent event) override;

 private:
  const Driver& driver_;
  Contexts& contexts_;
};

class Kernels final : public CudaKernelApi {
 public:
  /// `cache`: a folder; "": nothing is kept.
  Kernels(const Driver& driver, const Contexts& contexts, const std::string& cache)
      : driver_(driver), contexts_(contexts), cache_(cache) {}
  CudaKernel load(const std::string& text) override;
  std::vector<std::string> ignored() override;
  std::string why_from_ptx() override;
  void launch(const CudaLaunch& launch, CudaStream stream) override;

 private:
  const Driver& driver_;
  const Contexts& contexts_;
  std::mutex mutex_;  ///< compiling a kernel is slow
  Cache cache_;
  std::map<std::pair<int, std::string>, CUfunction> kernels_;  ///< by (GPU, text)
  std::string why_from_ptx_;
};

class Graphs final : public CudaGraphApi {
 public:
  explicit Graphs(const Driver& driver) : driver_(driver) {}
  void begin_capture(CudaStream stream) override;
  CudaGraph end_capture(CudaStream stream) override;
  void launch(CudaGraph graph, CudaStream stream) override;
  void release(CudaGraph graph) override;

 private:
  const Driver& driver_;
};

}  // namespace tessera::cuda
