// Tessera's code for CUDA's libraries (src/gpu/library) on stand-ins that enforce the libraries'
// rules.
#pragma once

#include <memory>

#include "gpu/emulated_cuda.h"

namespace tessera::test::rules {

/// libtessera_cuda.so on the stand-ins, which run on this emulated GPU. The
/// emulated GPU must outlive it. Throws unsupported with the reason if it does not open.
std::unique_ptr<CudaApi> open_libraries(EmulatedCuda& emulated);

}  // namespace tessera::test::rules
