// The pointwise loops for AVX-512 (F, BW, DQ, VL). Standard headers stand before the
// target pragma, so that no inline function of theirs is compiled for it.
#include <math.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#include "base/fail.h"
#include "kernels/cpu/pointwise_ops.h"
#include "kernels/cpu/types.h"
#include "kernels/float16.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define TESSERA_VECTOR_BYTES 64
#pragma GCC target("fma,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif

#include "kernels/cpu/pointwise_flags.h"
#include "kernels/cpu/reduce_row.h"
#include "kernels/pointwise.h"

namespace tessera::cpu {

#include "kernels/cpu/pointwise_loops.inc"
#include "kernels/cpu/pointwise_rows.inc"
#include "kernels/cpu/pointwise_walks.inc"

const BlockOps kAvx512Ops = {"avx512",
                             find_loop,
                             find_by_rows,
                             find_chain,
                             find_row_loop,
                             widen,
                             narrow,
                             stream,
                             random_words,
                             softmax_row<float>,
                             softmax_row<double>,
                             attention_grad_row<float>,
                             attention_grad_row<double>};

}  // namespace tessera::cpu
