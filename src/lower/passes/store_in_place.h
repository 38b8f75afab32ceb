// In-place updates of stored tensors.
#pragma once

#include "program/program.h"

namespace tessera {

/// Lets the steps that compute new values of stored tensors write them in place, if no step can see
/// the difference, and moves those steps after first_update.
void store_in_place(const Program& program, Function& function);

/// Computes initial values in the memory of the tensors that they are for, instead of beside it:
/// values of loops too, which store_in_place leaves. `init` is the function of that name.
void initialize_in_place(const Program& program, Function& init);

}  // namespace tessera
