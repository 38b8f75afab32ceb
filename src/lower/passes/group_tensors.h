// One launch for many tensors.
#pragma once

#include "program/program.h"

namespace tessera {

/// Replaces pointwise steps that run the same instructions on different tensors (the update of
/// every parameter, the casts of weights) by groups. A group is a pointwise step whose attribute
/// "tensors" says how many of them it holds. Its inputs are first the scalars, which all share,
/// then the operands of the first tensor, of the second, ...; its outputs alike. Every operand is
/// one contiguous dim, or rows that lie apart (concat_k_matmuls), and a scalar has stride 0. Values
/// are the same. Memory does not grow by more than a sixty-fourth.
void group_tensors(Program& program);

}  // namespace tessera
