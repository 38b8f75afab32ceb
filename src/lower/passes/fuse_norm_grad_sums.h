// Sums over rows move into the step that walks the rows.
#pragma once

#include "program/program.h"

namespace tessera {

/// A reduction sums over all rows what a pointwise step with row instructions has in registers: the
/// gradients of a norm's scale and shift, beside the gradient of its operand. The step takes the
/// sums over: its last outputs (as many as attribute "column_sums" says) are sums along the dims in
/// which their strides are 0. That dim has a few rows. The reduction then adds the sums of all such
/// parts, and no longer reads a row. Applies where there are rows for many parts of equal size. The
/// order of the sums depends on sizes alone.
void fuse_norm_grad_sums(Program& program);

}  // namespace tessera
