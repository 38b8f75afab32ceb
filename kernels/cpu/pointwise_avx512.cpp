// The pointwise loops for AVX-512 (F, BW, DQ, VL). Standard headers stand before the
// target pragma, so that no inline function of theirs is compiled for it.
#include <math.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "kernels/cpu/pointwise_ops.h"

#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif

#include "kernels/cpu/pointwise_flags.h"
#include "kernels/pointwise.h"

namespace tessera::cpu {

#include "kernels/cpu/pointwise_loops.inc"

const BlockOps kAvx512Ops = {"avx512", find_loop, widen, narrow, random_words};

}  // namespace tessera::cpu
