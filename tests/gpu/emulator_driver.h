// The emulated GPU as the driver shows it.
#pragma once

#include "gpu/emulator_state.h"

namespace tessera::test {

class EmulatedContexts final : public CudaContextApi {
 public:
  explicit EmulatedContexts(EmulatorState& state) : state_(state) {}
  std::vector<CudaGpu> gpus() override;
  void* use(int gpu) override;
  void restore(void* context) override;
  bool reaches(int gpu, int other) override { return gpu == other || state_.settings.has_access; }

 private:
  EmulatorState& state_;
};

class EmulatedMemory final : public CudaMemoryApi {
 public:
  explicit EmulatedMemory(EmulatorState& state) : state_(state) {}
  int64_t free_memory() override { return state_.memory - used_; }
  void* allocate(int64_t bytes) override;
  void release(void* memory) override;
  int gpu_of(const void* memory) override;
  void* allocate_host(int64_t bytes) override;
  void release_host(void* memory) override;
  void to_device(void* to, const void* host, int64_t bytes, CudaStream stream) override;
  void to_host(void* host, const void* from, int64_t bytes, CudaStream stream) override;
  void clear(void* memory, int64_t bytes, CudaStream stream) override;

 private:
  EmulatorState& state_;
  int64_t used_ = 0;
};

class EmulatedStreams final : public CudaStreamApi {
 public:
  explicit EmulatedStreams(EmulatorState& state) : state_(state) {}
  CudaStream make_stream() override { return make_stream(false); }
  CudaStream make_urgent_stream() override { return make_stream(true); }
  CudaStream make_stream(bool is_urgent);
  void release(CudaStream) override {}
  void synchronize(CudaStream stream) override;
  std::string why_not_adopted(CudaStream stream) override;
  bool is_capturing(CudaStream stream) override;
  CudaEvent make_event() override;
  CudaEvent make_timer() override { return make_event(); }
  double seconds_between(CudaEvent first, CudaEvent second) override;
  void release(CudaEvent) override {}
  void record(CudaEvent event, CudaStream stream) override;
  void wait(CudaStream stream, CudaEvent event) override;
  bool passed(CudaEvent event) override;

 private:
  EmulatorState& state_;
  std::vector<std::unique_ptr<EmulatorState::Event>> events_;
};

class EmulatedKernels final : public CudaKernelApi {
 public:
  explicit EmulatedKernels(EmulatorState& state);
  ~EmulatedKernels() override;
  CudaKernel load(const std::string& text) override;
  std::vector<std::string> ignored() override { return ignored_files; }
  std::string why_from_ptx() override { return ""; }
  void launch(const CudaLaunch& launch, CudaStream stream) override;
  /// The distinct kernels loaded so far.
  std::vector<std::string> texts() const;
  std::vector<std::string> ignored_files;  ///< what ignored() gives

 private:
  struct Kernel;
  EmulatorState& state_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
  std::map<std::string, Kernel*> by_text_;
};

class EmulatedGraphs final : public CudaGraphApi {
 public:
  explicit EmulatedGraphs(EmulatorState& state) : state_(state) {}
  void begin_capture(CudaStream stream) override;
  CudaGraph end_capture(CudaStream stream) override;
  void launch(CudaGraph graph, CudaStream stream) override;
  void release(CudaGraph graph) override;

 private:
  EmulatorState& state_;
  int captured_ = 0;
};

}  // namespace tessera::test
