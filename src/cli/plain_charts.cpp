#include "cli/plain_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
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

pages::Json mesh_chart(const Mesh& mesh, const pages::Json& hosts,
                       const std::vector<std::string>& links) {
  pages::Json axes = pages::Json::array();
  for (const MeshAxis& axis : mesh.axes()) axes.push_back({axis.name, axis.size});
  return {{"kind", "mesh"},
          {"title", "the mesh: " + mesh.to_string()},
          {"mesh", axes},
          {"hosts", hosts},
          {"links", links}};
}

std::vector<CauseOfBoth> causes_of_both(const Causes& a, const Causes& b) {
  std::vector<CauseOfBoth> all;
  const auto of = [&](const std::string& name) -> CauseOfBoth& {
    const auto at =
        std::find_if(all.begin(), all.end(), [&](const CauseOfBoth& c) { return c.name == name; });
    return at == all.end() ? all.emplace_back(CauseOfBoth{name}) : *at;
  };
  for (const auto& [name, seconds] : a) of(name).a = seconds;
  for (const auto& [name, seconds] : b) of(name).b = seconds;
  std::erase_if(all, [](const CauseOfBoth& c) { return c.a == 0 && c.b == 0; });
  return all;
}

double seconds_of(const Causes& step) {
  double sum = 0;
  for (const auto& [name, seconds] : step) sum += seconds;
  return sum;
}

std::string verdict(const std::string& name_a, const Causes& a, const std::string& name_b,
                    const Causes& b) {
  const double whole = seconds_of(a), more = seconds_of(b) - whole;
  if (std::abs(more) < 5e-4 * whole)
    return fmt::format("{} and {} take the same time.", name_a, name_b);
  std::string text =
      fmt::format("{} takes {:.3f} ms ({:.0f} %) {} than {}", name_b, 1e3 * std::abs(more),
                  100 * std::abs(more) / whole, more > 0 ? "more" : "less", name_a);
  const std::vector<CauseOfBoth> causes = causes_of_both(a, b);
  const auto most = std::max_element(
      causes.begin(), causes.end(),
      [&](const auto& x, const auto& y) { return (x.b - x.a) * more < (y.b - y.a) * more; });
  if (most != causes.end() && (most->b - most->a) / more > 0.5)
    text += fmt::format(", most of it {} ({:+.3f})", most->name, 1e3 * (most->b - most->a));
  return text + ".";
}

}  // namespace tessera::cli
