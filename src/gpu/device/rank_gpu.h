// The GPU of a rank and what the host program lends: shared by all parts of the device.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <functional>
#include <string>

#include "collectives/communicator.h"
#include "gpu/device/cuda_api.h"

namespace tessera {

/// What the host program lends: see tessera/interop/cuda.h.
struct CudaLoan {
  bool has_stream = false;  ///< `stream` is the host program's; it may be null
  CudaStream stream = nullptr;
  int64_t memory_limit = 0;
  std::function<void*(int64_t bytes)> allocate = {};
  std::function<void(void* memory, int64_t bytes)> release = {};
};

struct CudaDeviceOptions {
  /// Use NCCL if available. It needs a GPU per rank.
  bool use_groups = false;
  bool tf32 = false;       ///< float32 matmuls may round their operands to tf32
  bool is_strict = false;  ///< kernels have the bits of the CPU's, and libraries are not asked
  CudaLoan loan = {};
};

struct RankGpu {
  CudaApi& api;
  int number;
  Communicator& world;
  CudaDeviceOptions options;

  std::string name() const { return fmt::format("cuda:{}", number); }
};

/// Makes the GPU current for the calling thread during its lifetime.
class UseGpu {
 public:
  explicit UseGpu(const RankGpu& gpu) : UseGpu(gpu.api.contexts(), gpu.number) {}
  UseGpu(CudaContextApi& contexts, int gpu) : contexts_(contexts), before_(contexts.use(gpu)) {}
  ~UseGpu() {
    try {
      contexts_.restore(before_);
    } catch (const std::exception&) {  // the GPU failed: the next call reports it
    }
  }
  UseGpu(const UseGpu&) = delete;

 private:
  CudaContextApi& contexts_;
  void* before_;
};

}  // namespace tessera
