// The loops of convolution through the Fourier domain for AVX2 and FMA. Standard
// headers stand before the target pragma, so that no inline function of theirs is compiled for it.
#include <cstdint>
#include <utility>

#include "kernels/cpu/conv_fourier_ops.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#define TESSERA_VECTOR_BYTES 32
#pragma GCC target("avx2,fma")
#else
#define TESSERA_VECTOR_BYTES 16
#endif

namespace tessera::cpu {

#include "kernels/cpu/conv_fourier_loops.inc"

const FourierOps kFourierAvx2 = kFourierOps;

}  // namespace tessera::cpu
