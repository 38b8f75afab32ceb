// Attention with cuDNN's graph API, which is opened at first use.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "gpu/device/cuda_dnn.h"

namespace tessera::cuda {

class Contexts;

class CudnnAttention final : public CudaAttentionApi {
 public:
  explicit CudnnAttention(const Contexts& contexts);
  ~CudnnAttention() override;
  /// Why it is not available; empty if it is.
  std::string why_not();
  /// Returns null if no deterministic engine needs at most `most` bytes of workspace on the
  /// thread's GPU. Of the others takes the heuristic's first, the same on every rank: nothing is
  /// measured.
  CudaAttention prepare(const CudaAttend& attend, int64_t most, std::string& why) override;
  void run(CudaAttention attention, const CudaAttendOperands& operands, void* workspace,
           CudaStream stream) override;
  void release(CudaAttention attention) override;

 private:
  struct Library;
  struct Attention;
  Library& library();

  const Contexts& contexts_;
  std::mutex mutex_;
  std::unique_ptr<Library> library_;
};

}  // namespace tessera::cuda
