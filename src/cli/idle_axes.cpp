#include "cli/idle_axes.h"

#include <fmt/ranges.h>

#include <set>
#include <vector>

namespace tessera::cli {

namespace {

/// Rules for what is stored (@state and the like) share memory, not work.
bool shares_work(const LayoutRule& rule) { return rule.purpose == Purpose::none; }

/// The layout with `batch` split over `more` axes besides those that it has.
std::string with_batch_over(const Layout& layout, const std::vector<std::string>& more) {
  std::vector<std::string> rules, axes;
  for (const LayoutRule& rule : layout.rules()) {
    if (shares_work(rule) && rule.scope.empty() && rule.dim == "batch") {
      axes = rule.axes;
    } else {
      rules.push_back(rule.text);
    }
  }
  axes.insert(axes.end(), more.begin(), more.end());
  rules.insert(rules.begin(), fmt::format("batch:{}", fmt::join(axes, "+")));
  return fmt::format("{}", fmt::join(rules, ";"));
}

}  // namespace

std::string idle_axes_note(const Job& job) {
  std::set<std::string> used;
  for (const LayoutRule& rule : job.layout.rules()) {
    if (shares_work(rule)) used.insert(rule.axes.begin(), rule.axes.end());
  }
  std::vector<std::string> idle;
  int64_t ranks = 1;
  for (const MeshAxis& axis : job.mesh.axes()) {
    if (axis.size == 1 || used.contains(axis.name)) continue;
    idle.push_back(axis.name);
    ranks *= axis.size;
  }
  if (idle.empty()) return "";
  return fmt::format(
      "note: groups of {} ranks compute the same, since no dim is split over mesh axis {}; to "
      "share the examples among them: --layout \"{}\"",
      ranks, fmt::join(idle, " and "), with_batch_over(job.layout, idle));
}

}  // namespace tessera::cli
