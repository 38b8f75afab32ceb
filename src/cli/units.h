// Numbers with units, as the command line shows them.
#pragma once

#include <string>

namespace tessera::cli {

/// "12.3 GFLOP/s", "1.2 MB"
std::string with_unit(double value, const char* unit);
/// "12 s", "3:04 min", "1:02 h"
std::string duration(double seconds);

}  // namespace tessera::cli
