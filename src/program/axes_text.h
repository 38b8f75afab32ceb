// Sets of mesh axes as text, for reports.
#pragma once

#include <string>
#include <vector>

#include "program/program.h"

namespace tessera {

/// "data+model", the names of these axes of the Program's mesh.
inline std::string axes_text(const Program& program, const std::vector<int>& axes) {
  std::string text;
  for (const int axis : axes) text += (text.empty() ? "" : "+") + program.axis_names[axis];
  return text;
}

}  // namespace tessera
