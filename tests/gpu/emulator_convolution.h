// Convolutions of the emulated GPU.
#pragma once

#include "gpu/emulator_state.h"

namespace tessera::test {

class EmulatedConvolution final : public CudaConvolutionApi {
 public:
  explicit EmulatedConvolution(EmulatorState& state) : state_(state) {}
  CudaConvolution prepare(const CudaConv& conv) override;
  void run(CudaConvolution convolution, const void* first, const void* second, void* result,
           void* workspace, CudaStream stream) override;
  void release(CudaConvolution convolution) override;

 private:
  EmulatorState& state_;
};

}  // namespace tessera::test
