#include "cli/report.h"

#include <cmath>

#include "base/files.h"

namespace tessera::cli {

void require_place_for(const std::string& path) { require_writable(path); }

void write_report(const std::string& path, const nlohmann::json& report) {
  if (path.empty()) return;
  write_text_file(path,
                  report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

nlohmann::json json_number(double v) {
  return std::isfinite(v) ? nlohmann::json(v) : nlohmann::json(nullptr);
}

}  // namespace tessera::cli
