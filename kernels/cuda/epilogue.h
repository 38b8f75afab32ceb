// What cuBLASLt does to a matmul before it stores it: from the pointwise program of a
// step "contract", so that the compile half, which puts instructions there, and the run half agree.
//
// The program's load #0 is the result of the matmul, in the type of the operands; load #k is
// operand k + 1 of the step. Its outputs are those of the step.
#pragma once

#include <optional>

#include "kernels/cuda/matmul_plan.h"

namespace tessera::cuda {

/// D = act(A B + added + bias), numbers of operands of the step or -1. act: nothing; gelu, perhaps
/// with its operand stored as a second output; or a multiplication by gelu_grad(before).
struct Epilogue {
  int added = -1, bias = -1, before = -1;
  bool gelu = false;
  int kept = -1;  ///< the output that gets the operand of gelu
};

/// The epilogue of a "contract" with a pointwise program. Empty if one call cannot do it:
///   the result lies as one call leaves it, in the type of the operands or in float32;
///   `added` lies as the result does; `bias` has one element a column of the library's matrix;
///   gelu and its gradient are for 16-bit results only: the library's tanh is an approximation
///   that such results do not show, and they have rows of a multiple of 8 elements.
std::optional<Epilogue> find_epilogue(const Step& step);

/// The pointwise step that does to a matmul which stands in output 0, with `added` in it, what is
/// left of the epilogue: where the library refuses. Null if nothing is left.
std::optional<Step> rest_of_epilogue(const Step& step, const Epilogue& epilogue);

/// For the compile half: whether the library takes `step`, whose pointwise program is not empty.
bool takes_epilogue(const Step& step);

}  // namespace tessera::cuda
