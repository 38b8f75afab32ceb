// Attention by cuDNN's graphs of operations, opened when the first one is asked for.
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
  /// Why there are none; empty if there are.
  std::string why_not();
  /// Null where no engine with a fixed order of sums does with `most` bytes of workspace on the
  /// thread's GPU. Of the others the first of the library's heuristic, the same on every rank:
  /// nothing is measured.
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
