// Attention of the emulated GPU.
#pragma once

#include "gpu/emulator_state.h"

namespace tessera::test {

class EmulatedAttention final : public CudaAttentionApi {
 public:
  explicit EmulatedAttention(EmulatorState& state) : state_(state) {}
  CudaAttention prepare(const CudaAttend& attend, int64_t workspace, std::string& why) override;
  void run(CudaAttention attention, const CudaAttendOperands& operands, void* workspace,
           CudaStream stream) override;
  void release(CudaAttention attention) override;

 private:
  EmulatorState& state_;
};

}  // namespace tessera::test
