// The loops of convolution through the Fourier domain for the instruction set of the build.
#include <cstdint>
#include <utility>

#include "kernels/cpu/conv_fourier_ops.h"

#define TESSERA_VECTOR_BYTES 16

namespace tessera::cpu {

#include "kernels/cpu/conv_fourier_loops.inc"

const FourierOps kFourierBase = kFourierOps;

}  // namespace tessera::cpu
