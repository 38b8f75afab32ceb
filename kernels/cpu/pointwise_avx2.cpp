// The pointwise loops for AVX2. Standard headers stand before the
// target pragma, so that no inline function of theirs is compiled for it.
#include <math.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "kernels/cpu/pointwise_ops.h"

#if defined(__x86_64__) && defined(__GNUC__)
#pragma GCC target("avx2")
#endif

#include "kernels/cpu/pointwise_flags.h"
#include "kernels/pointwise.h"

namespace tessera::cpu {

#include "kernels/cpu/pointwise_loops.inc"

const BlockOps kAvx2Ops = {"avx2", find_loop, widen, narrow, random_words};

}  // namespace tessera::cpu
