// Ops that write their operand.
#pragma once

#include <set>
#include <string>

#include "pytorch/program.h"

namespace tessera::pytorch {

/// Replaces a write by an op with a result where nothing else that shares the operand's memory is
/// read afterwards. Returns the values that share memory with what the writes that are left change.
std::set<std::string> replace_writes(ExportedProgram& program);
/// Whether the results of an op may share memory with an operand.
bool may_be_view(const std::string& target);

}  // namespace tessera::pytorch
