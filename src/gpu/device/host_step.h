// Steps of a rank with a GPU that run on the host.
#pragma once

#include <memory>

#include "gpu/device/wait.h"
#include "kernels/common/kernel.h"

namespace tessera {

/// The step's operands on the host, its kernel of the CPU, and back.
std::unique_ptr<Kernel> bind_on_host(const RankGpu& gpu, const GpuStreams& streams,
                                     GpuMemory& memory, GpuWait& wait, const KernelArgs& args);

}  // namespace tessera
