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

/// "1.50 GFLOP", "20.00 MFLOP", "3.2 kFLOP", "17 FLOP".
inline std::string flops_text(double flops) {
  return flops >= 1e15   ? fmt::format("{:.2f} PFLOP", flops / 1e15)
         : flops >= 1e12 ? fmt::format("{:.2f} TFLOP", flops / 1e12)
         : flops >= 1e9  ? fmt::format("{:.2f} GFLOP", flops / 1e9)
         : flops >= 1e6  ? fmt::format("{:.2f} MFLOP", flops / 1e6)
         : flops >= 1e3  ? fmt::format("{:.1f} kFLOP", flops / 1e3)
                         : fmt::format("{:.0f} FLOP", flops);
}

}  // namespace tessera
