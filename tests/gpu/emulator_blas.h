// Matmuls of the emulated GPU.
#pragma once

#include "gpu/emulator_state.h"

namespace tessera::test {

class EmulatedBlas final : public CudaBlasApi {
 public:
  static constexpr int64_t kWorkspace = 4096;

  explicit EmulatedBlas(EmulatorState& state) : state_(state) {}
  CudaMatmul prepare(const CudaGemm& gemm) override;
  std::string why_not() override { return ""; }
  std::string library() override { return state_.settings.library; }
  std::vector<std::string> algorithms(CudaMatmul matmul, int most) override;
  bool use_algorithm(CudaMatmul matmul, const std::string& algorithm) override;
  int64_t workspace() override { return kWorkspace; }
  void run(CudaMatmul matmul, const void* a, const void* b, const void* added, void* c,
           void* workspace, CudaStream stream) override;
  void release(CudaMatmul matmul) override;
  /// run() of a matmul that was not prepared.
  void run(const CudaGemm& gemm, size_t algorithm, const void* a, const void* b, const void* added,
           void* c, void* workspace, CudaStream stream);
  /// Why the settings have no such matmul; empty if they have.
  std::string why_not(const CudaGemm& gemm) const;
  /// Notes that one was prepared.
  void count(const CudaGemm& gemm);

 private:
  EmulatorState& state_;
};

}  // namespace tessera::test
