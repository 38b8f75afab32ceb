// The loss that a user writes beside an exported program.
#pragma once

#include <string>

#include "pytorch/program.h"

namespace tessera::pytorch {

/// Appends what `text` says (PytorchOptions::loss) to the program, whose `loss` is then a value.
/// Returns the name of a new input for labels, or "". Throws usage errors.
std::string add_loss(ExportedProgram& program, const std::string& text);

}  // namespace tessera::pytorch
