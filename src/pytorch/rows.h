// Rows whose number the data say: those of tokens that a mask chooses, as a loop over experts takes
// them.
#pragma once

#include <set>
#include <string>

#include "pytorch/program.h"

namespace tessera::pytorch {

/// Where such rows are computed each by itself and put back or added where they came from, all rows
/// are computed instead, and those that the mask chooses count. What is in another form stays, and
/// what has values of `changed`, which writes change.
void find_chosen_rows(ExportedProgram& program, const std::set<std::string>& changed);

}  // namespace tessera::pytorch
