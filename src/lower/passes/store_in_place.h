// Updates of stored tensors without a copy.
#pragma once

#include "program/program.h"

namespace tessera {

/// Lets the steps that compute new values of stored tensors write them in place, where nothing can
/// see the difference, and moves them behind first_update.
void store_in_place(const Program& program, Function& function);

}  // namespace tessera
