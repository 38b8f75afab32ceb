// A GPU made of the host: the recording device of the tests.
//
// It runs what it is given when somebody waits for it, with kernels compiled by the host's compiler
// from the text that NVRTC gets; and it checks that a real GPU, which keeps only the order within
// streams and by events, would have to come to the same result (emulator_state.h).
// Also an error are: waiting for an event that nobody recorded, a call from a thread that has not
// chosen the GPU, a copy from memory that was not pinned, pinned memory that changes before its
// copy has ended, a kernel that reads a GPU that its own does not reach, and what CUDA forbids
// during a capture. What is wrong where nothing can be thrown is told by take_misuses().
//
// In a build with CUDA, calls go through Tessera's own code for the driver, NVRTC, cuBLASLt, cuDNN
// and NCCL (src/gpu/library), which finds stand-ins of these libraries that enforce their rules
// (gpu/rules). TESSERA_TEST_DRIVER=direct leaves that out.
#pragma once

#include "gpu/emulated_cuda.h"

namespace tessera::test {

class CudaEmulator final : public CudaApi, public EmulatorSettings, public EmulatorCounts {
 public:
  explicit CudaEmulator(int gpus = 1, int64_t memory = int64_t{1} << 30)
      : state_(gpus, memory, *this, *this) {}

  /// What was done since the last call, one line each: "launch k3 on s1", "record e2 on s1".
  std::vector<std::string> take_log() { return std::exchange(state_.log, {}); }
  std::vector<std::string> take_misuses() { return std::exchange(state_.misuses, {}); }
  /// The distinct kernels loaded so far.
  std::vector<std::string> texts() const { return emulated_.kernels().texts(); }
  /// As if these files of the cache of kernels had not been used.
  void ignore_files(std::vector<std::string> files) {
    emulated_.kernels().ignored_files = std::move(files);
  }
  const EmulatorState& state() const { return state_; }
  /// What the GPU is given, without any library between.
  EmulatedCuda& emulated() { return emulated_; }

  CudaContextApi& contexts() override { return api().contexts(); }
  CudaMemoryApi& memory() override { return api().memory(); }
  CudaStreamApi& streams() override { return api().streams(); }
  CudaKernelApi& kernels() override { return api().kernels(); }
  CudaGraphApi& graphs() override { return api().graphs(); }
  CudaBlasApi& blas() override { return api().blas(); }
  CudaConvolutionApi* convolution(std::string& why) override { return api().convolution(why); }
  CudaAttentionApi* attention(std::string& why) override { return api().attention(why); }
  CudaNcclApi* nccl(std::string& why) override { return api().nccl(why); }
  CudaProfilerApi* profiler() override { return api().profiler(); }

 private:
  /// Opened at first use: settings are made before. Throws what opening CUDA throws.
  CudaApi& api();

  EmulatorState state_;
  mutable EmulatedCuda emulated_{state_};
  std::mutex opening_;
  std::unique_ptr<CudaApi> libraries_;
};

/// The emulator as cuda_api() of this process, while it lives.
class WithEmulator {
 public:
  explicit WithEmulator(CudaEmulator& emulator) { replace_cuda_api(&emulator); }
  ~WithEmulator() { replace_cuda_api(nullptr); }
};

}  // namespace tessera::test
