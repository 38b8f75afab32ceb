// Which way a matmul takes, and by which algorithm of the library: measured once, the same on all
// ranks.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "gpu/device/kernels.h"

namespace tessera {

/// A way to compute a matmul: one of the library's, perhaps with a kernel of Tessera's behind it.
struct MatmulWay {
  CudaMatmul matmul = nullptr;
  bool has_rest = false;
};

class GemmAutotune {
 public:
  GemmAutotune(const RankGpu& gpu, const GpuStreams& streams, const GpuMemory& memory)
      : gpu_(gpu), streams_(streams), memory_(memory) {}
  GemmAutotune(const GemmAutotune&) = delete;

  /// Which of the ways, all of which compute what `gemm` says in so many calls, is taken, by an
  /// algorithm that is set: the fastest by a measurement, which overwrites the results of `args`,
  /// or by one that was made before (gemm_algorithm_cache.h). What the first rank takes is taken by
  /// all with such a GPU. Collective over the ranks, once for every problem, also without a way.
  size_t choose(const CudaGemm& gemm, size_t calls, const std::vector<MatmulWay>& ways,
                const std::vector<Kernel*>& kernels, const KernelArgs& args);
  /// Why what was measured lasts no longer than this process; empty if it does, or nothing was.
  std::string why_not_kept() const;

 private:
  std::string measure(const std::vector<MatmulWay>& ways, const std::vector<Kernel*>& kernels);
  std::string agreed(const std::string& problem, const std::string& library,
                     const std::function<std::string()>& choose);

  const RankGpu& gpu_;
  const GpuStreams& streams_;
  const GpuMemory& memory_;
  bool measured_ = false;
  std::map<std::string, std::string> agreed_;  ///< choices by problem
};

}  // namespace tessera
