// A GPU made of the host: the recording device of the tests.
//
// It runs what it is given when somebody waits for it, with kernels compiled by the host's compiler
// from the text that NVRTC gets; and it checks that a real GPU, which keeps only the order within
// streams and by events, would have to come to the same result (emulator_state.h).
// Also an error are: waiting for an event that nobody recorded, a call from a thread that has not
// chosen the GPU, a copy from memory that was not pinned, pinned memory that changes before its
// copy has ended, a kernel that reads a GPU that its own does not reach, and what CUDA forbids
// during a capture. What is wrong where nothing can be thrown is told by take_misuses().
#pragma once

#include "gpu/emulator_attention.h"
#include "gpu/emulator_blas.h"
#include "gpu/emulator_convolution.h"
#include "gpu/emulator_driver.h"
#include "gpu/emulator_nccl.h"

namespace tessera::test {

class EmulatedProfiler final : public CudaProfilerApi {
 public:
  explicit EmulatedProfiler(EmulatorState& state) : state_(state) {}
  void push_range(const char* text) override {
    const std::lock_guard lock(state_.mutex);
    state_.counts.shown.emplace_back(static_cast<int>(state_.counts.open_ranges++), text);
  }
  void pop_range() override { --state_.counts.open_ranges; }

 private:
  EmulatorState& state_;
};

class CudaEmulator final : public CudaApi, public EmulatorSettings, public EmulatorCounts {
 public:
  explicit CudaEmulator(int gpus = 1, int64_t memory = int64_t{1} << 30)
      : state_(gpus, memory, *this, *this) {}

  /// What was done since the last call, one line each: "launch k3 on s1", "record e2 on s1".
  std::vector<std::string> take_log() { return std::exchange(state_.log, {}); }
  std::vector<std::string> take_misuses() { return std::exchange(state_.misuses, {}); }
  /// The distinct kernels loaded so far.
  std::vector<std::string> texts() const { return kernels_.texts(); }
  /// As if these files of the cache of kernels had not been used.
  void ignore_files(std::vector<std::string> files) { kernels_.ignored_files = std::move(files); }

  CudaContextApi& contexts() override { return contexts_; }
  CudaMemoryApi& memory() override { return memory_; }
  CudaStreamApi& streams() override { return streams_; }
  CudaKernelApi& kernels() override { return kernels_; }
  CudaGraphApi& graphs() override { return graphs_; }
  CudaBlasApi& blas() override { return blas_; }
  CudaConvolutionApi* convolution(std::string& why) override {
    return there(has_convolutions, convolution_, why);
  }
  CudaAttentionApi* attention(std::string& why) override {
    return there(has_attentions, attention_, why);
  }
  CudaNcclApi* nccl(std::string& why) override { return there(has_groups, nccl_, why); }
  CudaProfilerApi* profiler() override { return profiled ? &profiler_ : nullptr; }

 private:
  template <class Library>
  static Library* there(bool has, Library& library, std::string& why) {
    why = has ? "" : "the emulator has none";
    return has ? &library : nullptr;
  }

  EmulatorState state_;
  EmulatedContexts contexts_{state_};
  EmulatedMemory memory_{state_};
  EmulatedStreams streams_{state_};
  EmulatedKernels kernels_{state_};
  EmulatedGraphs graphs_{state_};
  EmulatedBlas blas_{state_};
  EmulatedConvolution convolution_{state_};
  EmulatedAttention attention_{state_};
  EmulatedNccl nccl_{state_, streams_};
  EmulatedProfiler profiler_{state_};
};

/// The emulator as cuda_api() of this process, while it lives.
class WithEmulator {
 public:
  explicit WithEmulator(CudaEmulator& emulator) { replace_cuda_api(&emulator); }
  ~WithEmulator() { replace_cuda_api(nullptr); }
};

}  // namespace tessera::test
