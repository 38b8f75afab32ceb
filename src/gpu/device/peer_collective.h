// Collectives among threads of one process, on GPUs with peer access: kernels read every peer's
// operand in place.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpu/device/enqueued.h"
#include "gpu/device/kernels.h"

namespace tessera {

class PeerCollective final : public Operation, public Enqueued {
 public:
  PeerCollective(const RankGpu& gpu, GpuStreams& streams, GpuMemory& memory, GpuKernels& kernels,
                 Communicator& group, const std::vector<Collective>& collectives);
  void start() override;
  void wait() override;
  std::string why_not_captured() const override { return "ranks of one process meet on the host"; }
  static bool can(const Collective& c);

 private:
  void meet();
  void add(const Collective& c, const std::vector<char*>& from);
  void copy(const TensorArg& from, const TensorArg& to);
  void combine(const std::vector<TensorArg>& from, const TensorArg& out, Combiner combiner);

  CudaApi& api_;
  const GpuStreams& streams_;
  GpuMemory& memory_;
  GpuKernels& kernels_;
  int ranks_, rank_;
  CudaEvent ready_ = nullptr, done_ = nullptr;
  std::vector<CudaEvent> peers_ready_, peers_done_;
  std::vector<CudaLaunch> launches_, after_;
  std::unique_ptr<Operation> meeting_;
};

}  // namespace tessera
