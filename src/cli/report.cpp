#include "cli/report.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/fail.h"

namespace tessera::cli {

void require_place_for(const std::string& path) {
  if (path.empty()) return;
  const std::filesystem::path file(path), folder = file.parent_path();
  if (std::filesystem::is_directory(file) ||
      !(folder.empty() || std::filesystem::is_directory(folder))) {
    fail(ErrorKind::io, "cannot write '{}': {}", path,
         std::filesystem::is_directory(file) ? "it is a directory" : "its folder does not exist");
  }
}

void write_report(const std::string& path, const nlohmann::json& report) {
  if (path.empty()) return;
  std::ofstream file(path);
  file << report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  if (!file.flush()) fail(ErrorKind::io, "cannot write '{}'", path);
}

nlohmann::json json_number(double v) {
  return std::isfinite(v) ? nlohmann::json(v) : nlohmann::json(nullptr);
}

}  // namespace tessera::cli
