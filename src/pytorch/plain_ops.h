// What a program writes out in a form that is not recognized.
#pragma once

#include <string>
#include <vector>

#include "pytorch/import.h"

namespace tessera::pytorch {

/// A line for each place of the user's Python with an op that is a piece of a layer with a kernel
/// of its own: PytorchModel::plain_ops().
std::vector<std::string> find_plain_ops(const Import& import);

}  // namespace tessera::pytorch
