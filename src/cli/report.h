// The report that subcommands write with --json FILE.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tessera::cli {

/// Throws an io error unless a file can be created at `path` ("" is allowed). Called before a long
/// job.
void require_place_for(const std::string& path);
/// Writes the report, indented; does nothing if `path` is "". Throws an io error. Root only.
void write_report(const std::string& path, const nlohmann::json& report);
/// v, or null if it is not finite, which JSON cannot represent.
nlohmann::json json_number(double v);

}  // namespace tessera::cli
