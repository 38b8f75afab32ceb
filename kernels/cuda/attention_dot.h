// The dot products of attention's result with its gradient, where no step has stored them.
#pragma once

#include <cstdint>

#include "kernels/common/kernel.h"

namespace tessera::cuda {

/// True if a gradient of attention computes its operand 6 itself: attribute "own_dot" (pass
/// fuse_attention_delta). The operand then shows log_sum, whose shape and type it has.
bool computes_dot(const Step& step);

/// Bytes of workspace for the spans of segments and the sums of biases' gradients, which are first;
/// a multiple of 256.
int64_t attention_first_bytes(const Step& step);
/// Bytes of workspace for the dot products, behind what the kernels need; 0 if a step stores them.
int64_t attention_dot_bytes(const Step& step);

/// The pointwise step that computes the dot products into `to`, and its operands.
struct AttentionDot {
  explicit AttentionDot(const KernelArgs& gradient, void* to);
  AttentionDot(const AttentionDot&) = delete;
  AttentionDot& operator=(const AttentionDot&) = delete;
  Step step;
  KernelArgs args;
  TensorArg result;  ///< operand 6 of the gradient
};

}  // namespace tessera::cuda
