// In-place updates of stored tensors.
#pragma once

#include "program/program.h"

namespace tessera {

/// Lets the steps that compute new values of stored tensors write them in place, if no step can see
/// the difference, and moves those steps after first_update.
void store_in_place(const Program& program, Function& function);

}  // namespace tessera
