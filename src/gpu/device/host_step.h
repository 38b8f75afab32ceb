// Steps that run on the host although the rank has a GPU.
#pragma once

#include <memory>

#include "gpu/device/wait.h"
#include "kernels/common/kernel.h"

namespace tessera {

/// Copies the step's operands to the host, runs the CPU kernel, and copies the results back.
std::unique_ptr<Kernel> bind_on_host(const RankGpu& gpu, const GpuStreams& streams,
                                     GpuMemory& memory, GpuWait& wait, const KernelArgs& args);

}  // namespace tessera
