// The loops of convolution through the Fourier domain for AVX-512 (F, BW, DQ, VL). Standard
// headers stand before the target pragma, so that no inline function of theirs is compiled for it.
#include <cstdint>
#include <utility>

#include "kernels/cpu/conv_fourier_ops.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>
#define TESSERA_VECTOR_BYTES 64
#pragma GCC target("fma,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#else
#define TESSERA_VECTOR_BYTES 16
#endif

namespace tessera::cpu {

#include "kernels/cpu/conv_fourier_loops.inc"

const FourierOps kFourierAvx512 = kFourierOps;

}  // namespace tessera::cpu
