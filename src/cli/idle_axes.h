// Mesh axes that share no work: ranks that differ only there compute the same.
#pragma once

#include <string>

#include "cli/commands.h"

namespace tessera::cli {

/// "" if the layout splits a dim over each axis; else a message that names the others and gives the
/// layout that splits the examples over them, too.
std::string idle_axes_note(const Job& job);

}  // namespace tessera::cli
