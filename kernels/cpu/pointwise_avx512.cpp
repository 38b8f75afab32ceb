// The pointwise loops for AVX-512 (F, BW, DQ, VL). Standard headers come before the target pragma,
// so that none of their inline functions is compiled for it.
#include <math.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#include "base/fail.h"
#include "base/float16.h"
#include "kernels/common/types.h"
#include "kernels/cpu/pointwise_ops.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define TESSERA_VECTOR_BYTES 64
#pragma GCC target("fma,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif

#include "kernels/common/pointwise.h"
#include "kernels/cpu/pointwise_flags.h"
#include "kernels/cpu/reduce_row.h"

namespace tessera::cpu {

using namespace kernels;

// The first defines what the others use.
// clang-format off
#include "kernels/cpu/pointwise_loops.inc"
#include "kernels/cpu/pointwise_chain_loops.inc"
#include "kernels/cpu/pointwise_rows.inc"
// clang-format on

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
