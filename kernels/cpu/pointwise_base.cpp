// The pointwise loops for the build's instruction set. Standard headers come before the target
// pragma, so that none of their inline functions is compiled for it.
#include <math.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>

#include "kernels/common/pointwise.h"
#include "kernels/cpu/pointwise_flags.h"
#include "kernels/cpu/pointwise_ops.h"
#include "kernels/cpu/reduce_row.h"

namespace tessera::cpu {

// The first defines what the others use.
// clang-format off
#include "kernels/cpu/pointwise_loops.inc"
#include "kernels/cpu/pointwise_chain_loops.inc"
#include "kernels/cpu/pointwise_rows.inc"
// clang-format on

const BlockOps kBaseOps = {"base",
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
