// Products of experts that both a loop and the loop of its gradient would compute.
#pragma once

#include "program/program.h"

namespace tessera {

/// A grouped matmul in the body of a loop over layers whose like, of the same operands of the same
/// iteration, is in the body of a later loop (the gradient of nn::experts computes the hidden rows
/// as forward does): its result is kept for every iteration, and the later loop reads it. Without a
/// loop both are one step. What the model says is to be recomputed stays: steps whose names have
/// ".again".
void save_expert_activations(Program& program);

}  // namespace tessera
