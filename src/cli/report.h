// What subcommands leave behind with --json FILE.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tessera::cli {

/// Throws an io error unless a file could be made at `path` ("" is fine): before a long job, not
/// after it.
void require_place_for(const std::string& path);
/// Writes the report, indented; nothing if `path` is "". Throws an io error. Root only.
void write_report(const std::string& path, const nlohmann::json& report);
/// v, or null where it is not finite: JSON knows neither NaN nor infinity.
nlohmann::json json_number(double v);

}  // namespace tessera::cli
