// Layouts from files, and checks of purpose rules.
#include <algorithm>
#include <set>
#include <sstream>

#include "base/fail.h"
#include "base/files.h"
#include "cli/commands.h"

namespace tessera::cli {

std::string layout_rules(const std::string& text) {
  if (!text.starts_with('@')) return text;
  const std::string path = text.substr(1);
  const bool exists = is_there(path);
  if (!exists && text.find_first_of(":=") != text.npos) return text;  // "@params ff:data"
  if (!exists)
    fail(ErrorKind::io,
         "layout file '{}' does not exist; check the path, or write rules, such as '@params "
         "ff:data'",
         path);
  std::string rules = read_text_file("layout file", path);
  rules.erase(rules.find_last_not_of(" \t\r\n") + 1);
  TESSERA_REQUIRE(rules == "auto" || !Layout::parse(rules).rules().empty(),
                  "layout file '{}' has no rule; a layout that splits nothing is --layout ';'",
                  path);
  return rules;
}

std::vector<std::string> layouts_in(const std::string& path) {
  std::istringstream text(read_text_file("layouts", path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    line.erase(line.find_last_not_of(" \t\r") + 1);
    if (!line.empty() && line[0] != '#') lines.push_back(std::move(line));
  }
  TESSERA_REQUIRE(!lines.empty(), "'{}' has no layouts, one a line", path);
  return lines;
}

namespace {
/// Tensors of a purpose. If there are none (an optimizer without state), the parameters.
std::vector<const Value*> tensors_of(const Graph& graph, Purpose purpose) {
  std::vector<const Value*> found;
  for (const Value& v : graph.values()) {
    if (v.purpose == purpose) found.push_back(&v);
  }
  if (found.empty() && purpose != Purpose::params) return tensors_of(graph, Purpose::params);
  return found;
}
}  // namespace

void require_purposes(const Graph& graph, const Layout& layout) {
  for (const LayoutRule& rule : layout.rules()) {
    if (rule.purpose == Purpose::none || rule.optional || rule.automatic) continue;
    const auto has_dim = [&](const Value& v) { return v.shape.has(rule.dim); };
    if (std::none_of(graph.values().begin(), graph.values().end(), has_dim)) continue;
    std::set<std::string> dims;
    bool matches = false;
    for (const Value* v : tensors_of(graph, rule.purpose)) {
      const bool is_named = rule.scope.empty() || glob_match(rule.scope, v->name);
      matches = matches || (is_named && v->shape.has(rule.dim));
      for (const Dim& d : v->shape) dims.insert(d.name);
    }
    TESSERA_REQUIRE(
        matches,
        "layout rule '{}': no tensor of '@{}'{} has a dim '{}' (write '{}?' if it may be "
        "absent){}",
        rule.text, to_string(rule.purpose),
        rule.scope.empty() ? "" : " named like '" + rule.scope + "'", rule.dim, rule.dim,
        dims.contains(rule.dim) ? "" : suggestion(rule.dim, {dims.begin(), dims.end()}));
  }
}

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
