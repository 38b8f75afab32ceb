// The parts of the emulated GPU as CudaApi, without any library between. See emulator.h.
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

class EmulatedCuda final : public CudaApi {
 public:
  explicit EmulatedCuda(EmulatorState& state) : state_(state) {}

  EmulatorState& state() { return state_; }
  EmulatedContexts& contexts() override { return contexts_; }
  EmulatedMemory& memory() override { return memory_; }
  EmulatedStreams& streams() override { return streams_; }
  EmulatedKernels& kernels() override { return kernels_; }
  EmulatedGraphs& graphs() override { return graphs_; }
  EmulatedBlas& blas() override { return blas_; }
  EmulatedConvolution& convolutions() { return convolution_; }
  EmulatedNccl& groups() { return nccl_; }
  CudaConvolutionApi* convolution(std::string& why) override { return there(convolution_, why); }
  CudaAttentionApi* attention(std::string& why) override { return there(attention_, why); }
  CudaNcclApi* nccl(std::string& why) override {
    why = state_.settings.has_groups ? "" : "there is no NCCL: the emulator has none";
    return why.empty() ? &nccl_ : nullptr;
  }
  CudaProfilerApi* profiler() override { return state_.settings.profiled ? &profiler_ : nullptr; }

 private:
  template <class Library>
  Library* there(Library& library, std::string& why) const {
    why = state_.settings.has_cudnn ? "" : "cuDNN is missing: the emulator has none";
    return why.empty() ? &library : nullptr;
  }

  EmulatorState& state_;
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

}  // namespace tessera::test
