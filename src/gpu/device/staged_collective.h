// Collectives through pinned host memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpu/device/enqueued.h"
#include "gpu/device/wait.h"

namespace tessera {

/// Uses the ranks' own communicator. Waits for the GPU.
class StagedCollective final : public Operation, public Enqueued {
 public:
  /// `why`: why no faster way is possible.
  StagedCollective(const RankGpu& gpu, GpuStreams& streams, GpuMemory& memory, GpuWait& wait,
                   Communicator& group, const std::vector<Collective>& collectives,
                   std::string why);
  void start() override;
  bool advance() override { return operation_->advance(); }
  bool is_in_background() const override { return operation_->is_in_background(); }
  void wait() override;
  std::string why_not_captured() const override { return "it goes through the host: " + why_; }
  std::string why_waits() const override { return why_not_captured(); }

 private:
  struct Pair {
    const void* from = nullptr;
    void* to = nullptr;
    void *in = nullptr, *out = nullptr;
    int64_t in_bytes = 0, out_bytes = 0;
    bool keeps_out = false;  ///< former values of `out` matter: it has gaps, or is the root's
  };

  CudaMemoryApi& copies_;
  CudaStreamApi& api_;
  const GpuStreams& streams_;
  GpuWait& wait_;
  std::string why_;
  std::vector<Pair> pairs_;
  std::unique_ptr<Operation> operation_;
  CudaEvent ready_ = nullptr, done_ = nullptr;
};

}  // namespace tessera
