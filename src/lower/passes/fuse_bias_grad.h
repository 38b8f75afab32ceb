// Sums over the rows that a matmul contracts.
#pragma once

#include <functional>

#include "program/program.h"

namespace tessera {

/// A "reduce" that sums an operand of a matmul without batch dims over the dims that the matmul
/// contracts (the gradient of a bias) becomes part of the matmul: its result is the matmul's last
/// output, and the attribute "sums" is the number of the operand. `takes` tells whether the device
/// can run that, as in fuse_epilogues(); empty: yes. The operand is then read once.
void fuse_bias_grad(Program& program, const std::function<bool(const Step&)>& takes);

}  // namespace tessera
