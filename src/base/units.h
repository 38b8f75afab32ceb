// Numbers with units, for display.
#pragma once

#include <fmt/format.h>

#include <string>

namespace tessera {

/// "1.50 GB", "20.00 MB", "3.2 kB", "17 B": powers of 1000.
inline std::string bytes_text(double bytes) {
  return bytes >= 1e9   ? fmt::format("{:.2f} GB", bytes / 1e9)
         : bytes >= 1e6 ? fmt::format("{:.2f} MB", bytes / 1e6)
         : bytes >= 1e3 ? fmt::format("{:.1f} kB", bytes / 1e3)
                        : fmt::format("{:.0f} B", bytes);
}

}  // namespace tessera
