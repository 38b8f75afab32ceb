// The report that commands write with --json FILE, and numbers with units.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tessera::cli {

/// Writes the report, indented; does nothing if `path` is "". Throws an io error. Root only.
void write_report(const std::string& path, const nlohmann::json& report);
/// v, or null if it is not finite, which JSON cannot represent.
nlohmann::json json_number(double v);

/// "12.3 GFLOP/s", "1.2 MB"
std::string with_unit(double value, const char* unit);
/// "12 s", "3:04 min", "1:02 h"
std::string duration(double seconds);

}  // namespace tessera::cli
