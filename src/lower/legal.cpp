// Enumerates the layouts of a graph on a mesh up to exchange of equal axes: axes of equal size get
// dims in non-decreasing order. A layout is legal if partition() accepts it, that is, if no two
// dims of one tensor claim one axis.
#include <map>
#include <set>

#include "base/fail.h"
#include "ir/needed.h"
#include "lower/layout/rule_layouts.h"
#include "lower/partition/partition.h"
#include "tessera/explain.h"

namespace tessera {

namespace {

/// The dim names of all values that the functions need.
std::vector<std::string> dim_names(const Graph& graph, const std::vector<FunctionSpec>& functions) {
  std::vector<int> roots;
  for (const FunctionSpec& f : functions) {
    const std::vector<int> more = roots_of(graph, f);
    roots.insert(roots.end(), more.begin(), more.end());
  }
  const std::vector<char> needed = needed_nodes(graph, roots);
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    if (!needed[n]) continue;
    for (int v : graph.nodes()[n].out) {
      for (const Dim& d : graph.value(v).shape) {
        if (seen.insert(d.name).second) names.push_back(d.name);
      }
    }
  }
  return names;
}

bool is_legal(const Graph& graph, const Mesh& mesh, const Layout& layout,
              const std::vector<FunctionSpec>& functions) {
  try {
    const RuleLayouts rule_layouts(graph, mesh, layout);
    partition(graph, rule_layouts, functions, {});
    return true;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::usage) throw;
    return false;
  }
}

std::string rules_of(const Mesh& mesh, const std::vector<std::string>& names,
                     const std::vector<int>& pick) {
  std::map<int, std::string> axes;
  for (size_t a = 0; a < pick.size(); ++a) {
    if (pick[a] > 0) axes[pick[a]] += (axes[pick[a]].empty() ? "" : "+") + mesh.axes()[a].name;
  }
  std::string rules;
  for (const auto& [name, list] : axes)
    rules += fmt::format("{}{}:{}", rules.empty() ? "" : ";", names[name - 1], list);
  return rules;
}

/// Advances to the next assignment of names to axes (0: none, i: names[i-1]) in which equal axes
/// are in order. Returns false after the last one.
bool next_pick(const Mesh& mesh, int choices, std::vector<int>& pick) {
  while (true) {
    size_t a = pick.size();
    while (a > 0 && ++pick[a - 1] == choices) pick[--a] = 0;
    if (a == 0) return false;
    bool ordered = true;
    for (size_t i = 0; i < pick.size(); ++i) {
      for (size_t j = i + 1; j < pick.size(); ++j) {
        ordered = ordered && (mesh.axes()[i].size != mesh.axes()[j].size || pick[i] <= pick[j]);
      }
    }
    if (ordered) return true;
  }
}

}  // namespace

std::vector<Layout> legal_layouts(const Graph& graph, const Mesh& mesh,
                                  const std::vector<FunctionSpec>& functions) {
  const std::vector<std::string> names = dim_names(graph, functions);
  std::vector<int> pick(mesh.rank(), 0);
  std::vector<Layout> result;
  do {
    bool wasted = false;
    for (size_t a = 0; a < pick.size(); ++a) wasted |= pick[a] > 0 && mesh.axes()[a].size == 1;
    if (wasted) continue;
    Layout layout = Layout::parse(rules_of(mesh, names, pick));
    if (is_legal(graph, mesh, layout, functions)) result.push_back(std::move(layout));
  } while (next_pick(mesh, static_cast<int>(names.size()) + 1, pick));
  return result;
}

}  // namespace tessera
