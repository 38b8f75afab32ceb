// A layout as commands print it.
#pragma once

#include <string>

#include "tessera/mesh.h"

namespace tessera::cli {

inline std::string layout_text(const std::string& rules) {
  return rules.empty() ? "nothing split" : rules;
}
inline std::string layout_text(const Layout& layout) { return layout_text(layout.to_string()); }

}  // namespace tessera::cli
