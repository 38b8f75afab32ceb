// Kernels of a GPU as functions of the host. Either the text that NVRTC gets is compiled as C++,
// with tests/gpu/cuda_shim.h, once a process for whatever GPU asks for it; or NVRTC compiles it,
// and its PTX is executed (gpu/ptx): slower, but it is what a GPU would be given, with checks of
// every access.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/device/cuda_types.h"

namespace tessera::test {

/// What a kernel was given: it may touch nothing else.
struct KernelMemory {
  std::vector<CudaRange> reads, writes, atomics;
};

class HostKernel {
 public:
  virtual ~HostKernel() = default;
  /// Runs all threads of all blocks. args: the kernel's argument struct. `memory`: null where
  /// nothing is known; PTX that touches more throws.
  virtual void run(const void* args, int64_t blocks, int threads,
                   const KernelMemory* memory = nullptr) const = 0;
};

enum class KernelsAs : uint8_t { cpp, ptx };
/// Whether this build can make PTX.
bool has_ptx();
/// PTX if TESSERA_TEST_KERNELS is "ptx".
KernelsAs kernels_by_default();

/// Says that `text` will be wanted: it is compiled together with others.
void announce_host_kernel(const std::string& text, KernelsAs as = kernels_by_default());
/// Compiles all announced texts if this one has not been. Throws with the compiler's output.
const HostKernel& host_kernel(const std::string& text, KernelsAs as = kernels_by_default());

}  // namespace tessera::test
