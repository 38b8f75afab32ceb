// Products in split-K form: parts of the terms are summed on their own, and the sums are added. A
// thread takes whole parts. Of a few rows with a matrix that is dense along its columns: it so
// reads whole rows of the matrix; threads that shared its columns would each read pieces of a row,
// at half of the memory's bandwidth. Of far more terms than rows and columns (the gradient of
// tokens by a large vocabulary): it so packs a part of each matrix, not all of one of them.
#pragma once

#include <memory>

#include "kernels/common/gemm_plan.h"
#include "kernels/common/kernel.h"

namespace tessera::cpu {

/// True if the plan is one thin product of float32 or bfloat16, in place, with enough terms for
/// every part; or one of float32 with 64 times as many terms as rows or columns. The form, and so
/// the order of a sum, does not depend on the number of threads.
bool is_split_k(const kernels::GemmPlan& plan);
/// Bytes: the sums of all parts, in float32.
int64_t split_k_workspace(const kernels::GemmPlan& plan);
/// The threads of args.pool, if there are any, share the parts.
std::unique_ptr<Kernel> bind_split_k(const KernelArgs& args, const kernels::GemmPlan& plan);

}  // namespace tessera::cpu
