#include "cli/bar_chart.h"

#include <fmt/format.h>

#include <cstdlib>

namespace tessera::cli {

double rounded(double value) { return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr); }

pages::Json bar_chart(const std::string& title, const std::string& unit, const std::string& label,
                      const std::vector<std::pair<std::string, double>>& parts) {
  pages::Json list = pages::Json::array();
  for (const auto& [name, value] : parts) {
    if (value > 0) list.push_back({name, rounded(value)});
  }
  return {{"kind", "bars"},
          {"title", title},
          {"unit", unit},
          {"rows", {{{"label", label}, {"parts", list}}}}};
}

}  // namespace tessera::cli
