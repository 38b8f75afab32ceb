// Kernels of a GPU as functions of the host: the text that NVRTC gets, compiled with
// tests/gpu/cuda_shim.h. Compiled once a process, whatever GPU asks for it.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::test {

/// Runs all threads of all blocks. args: the kernel's argument struct.
using HostKernel = void (*)(const void* args, int64_t blocks, int threads);

/// Says that `text` will be wanted: it is compiled together with others.
void announce_host_kernel(const std::string& text);
/// Compiles all announced texts if this one has not been. Throws with the compiler's output.
HostKernel host_kernel(const std::string& text);

}  // namespace tessera::test
