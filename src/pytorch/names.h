// Names for atoms: of the parts that they play, else of modules.
#pragma once

#include <string>
#include <vector>

#include "pytorch/import.h"

namespace tessera::pytorch {

/// Names every atom of the import. Atoms that play one part in several layers and have one size
/// become one. `claims` are the user's, as PytorchOptions::dims says. Throws usage errors for
/// claims that the program contradicts.
void name_dims(Import& import, const std::string& claims);

/// "b.*.up" of "b.0.up".
std::string pattern_of(const std::string& module);

}  // namespace tessera::pytorch
