// Chooses how each matmul runs: in which way and by which library algorithm. Measured once, the
// same on all ranks.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "gpu/device/kernels.h"

namespace tessera {

/// A way to compute a matmul: a library matmul, perhaps followed by a kernel of ours.
struct MatmulWay {
  CudaMatmul matmul = nullptr;
  bool has_rest = false;
};

class GemmAutotune {
 public:
  GemmAutotune(const RankGpu& gpu, const GpuStreams& streams, const GpuMemory& memory)
      : gpu_(gpu), streams_(streams), memory_(memory) {}
  GemmAutotune(const GemmAutotune&) = delete;

  /// Chooses one of `ways`, all of which compute `gemm` (`calls` calls each), and sets its
  /// algorithm: a cached choice (gemm_algorithm_cache.h), else the fastest by a measurement, which
  /// overwrites the results of `args`. All ranks with the same GPU and library use the first rank's
  /// choice. Collective over the ranks, once per problem, even if there are no ways.
  size_t choose(const CudaGemm& gemm, size_t calls, const std::vector<MatmulWay>& ways,
                const std::vector<Kernel*>& kernels, const KernelArgs& args);
  /// Why measurements are only kept in this process; empty if they are kept on disk, or nothing was
  /// measured.
  std::string why_not_kept() const;
  /// Cached choices that could not be used, each with the cause; empty if nothing was measured.
  std::vector<std::string> ignored() const;

 private:
  std::string measure(const std::vector<MatmulWay>& ways, const std::vector<Kernel*>& kernels);
  std::string agreed(const std::string& problem, const std::string& library,
                     const std::function<std::string()>& choose);

  const RankGpu& gpu_;
  const GpuStreams& streams_;
  const GpuMemory& memory_;
  bool measured_ = false;
  std::map<std::string, std::string> agreed_;  ///< choices, by problem
};

}  // namespace tessera
