#include "grad/rematerializer.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/fail.h"
#include "ir/needed.h"
#include "ir/scopes.h"
#include "ir/source_ops.h"
#include "tessera/op.h"

namespace tessera {

namespace {

/// Whether `name` is `base` with a number behind it: "block12" and "block".
bool is_numbered(const std::string& name, const std::string& base) {
  return name.size() > base.size() && name.starts_with(base) &&
         std::all_of(name.begin() + static_cast<std::ptrdiff_t>(base.size()), name.end(),
                     [](unsigned char c) { return c >= '0' && c <= '9'; });
}

/// The index of the first glob that matches the scope `path`, or -1.
int match(const std::vector<std::string>& globs, const std::string& path) {
  const std::string last = path.substr(path.rfind('.') + 1);
  for (size_t i = 0; i < globs.size(); ++i) {
    if (glob_match(globs[i], path) || glob_match(globs[i], last) || is_numbered(last, globs[i]))
      return static_cast<int>(i);
  }
  return -1;
}

/// Whether recomputing it saves nothing: an input, a stored tensor, a scalar. Random bits are not
/// such a node: they have eight bytes an element.
bool is_there_anyway(const Graph& g, const Node& node) {
  return node.in.empty() &&
         (node.op == &kInput || node.op == &kStored || g.value(node.out[0]).shape.rank() == 0);
}

/// Whether it is made of a stored tensor alone, such as a cast of it, and gathered in its place.
bool is_of_stored(const Graph& g, const Node& node) {
  return node.in.size() == 1 && g.find_stored(node.in[0]) != nullptr;
}

/// Finds the outermost matching scope of nodes, and remembers which globs found any.
class Scopes {
 public:
  explicit Scopes(const std::vector<std::string>& globs)
      : globs_(globs), used_(globs.size(), false) {}

  /// The scope of the node called `name`; "" if none matches.
  std::string find(const std::string& name) {
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      const std::string path = name.substr(0, dot);
      const auto [it, is_new] = known_.emplace(path, -1);
      if (is_new) it->second = match(globs_, path);
      if (it->second < 0) continue;
      used_[it->second] = true;
      return path;
    }
    return "";
  }
  void require_all_used(const char* what, const Graph& g) const {
    for (size_t i = 0; i < globs_.size(); ++i) {
      TESSERA_REQUIRE(used_[i], "{}: no scope of the model matches '{}'{}", what, globs_[i],
                      suggestion(globs_[i], names_of(g)));
    }
  }

 private:
  /// The last names of all scopes but those of stored tensors.
  static std::vector<std::string> names_of(const Graph& g) {
    std::set<std::string> names;
    for (const Node& node : g.nodes()) {
      if (node.in.empty()) continue;
      size_t start = 0;
      for (size_t dot; (dot = node.name.find('.', start)) != std::string::npos; start = dot + 1)
        names.insert(node.name.substr(start, dot - start));
    }
    return {names.begin(), names.end()};
  }

  const std::vector<std::string>& globs_;
  std::vector<bool> used_;
  std::map<std::string, int> known_;
};

}  // namespace

Rematerializer::Rematerializer(const Graph& g, int y, const GradientOptions& options) {
  if (options.recompute.empty() && options.reshard_after_forward.empty()) return;
  Scopes recompute(options.recompute), reshard_after_forward(options.reshard_after_forward);
  std::map<std::pair<std::string, bool>, int> found;
  group_of_.assign(g.nodes().size(), -1);
  in_loops_.assign(g.nodes().size(), false);
  const std::vector<char> needed = needed_nodes(g, {y});
  for (size_t n = 0; n < g.nodes().size(); ++n) {
    const Node& node = g.nodes()[n];
    if (!needed[n] || is_there_anyway(g, node)) continue;
    const std::string outer = recompute.find(node.name),
                      inner = reshard_after_forward.find(node.name);
    const std::string& path = outer.empty() ? inner : outer;  // what is recomputed gathers again
    if (path.empty() || node.op == &kLoop) continue;
    if (!is_open(g, node.loop)) {  // what it gathers is gathered again in any case
      in_loops_[n] = !outer.empty();
      continue;
    }
    const auto [it, is_new] =
        found.emplace(std::pair(path, !outer.empty()), static_cast<int>(groups_.size()));
    if (is_new) groups_.push_back({{}, !outer.empty(), 0, {}});
    groups_[it->second].nodes.push_back(static_cast<int>(n));
    group_of_[n] = it->second;
  }
  recompute.require_all_used("recompute", g);
  reshard_after_forward.require_all_used("reshard_after_forward", g);
}

Rematerializer::Group* Rematerializer::group_of(int n) {
  const bool known = static_cast<size_t>(n) < group_of_.size() && group_of_[n] >= 0;
  return known ? &groups_[group_of_[n]] : nullptr;
}

void Rematerializer::reach(Graph& g, int n) {
  if (!group_of(n) || group_of(n)->recompute_group > 0) return;
  Group& group = *group_of(n);
  group.recompute_group = ++GraphInternals::of(g).recompute_groups;
  RecomputeScope scope(g, group.recompute_group);
  for (const int id : group.nodes) {
    const Node node = g.nodes()[id];  // a copy: the graph grows
    if (!group.recompute && !is_of_stored(g, node)) continue;
    std::vector<Tensor> in;
    for (const int v : node.in) in.emplace_back(&g, value(id, v));
    SourceScope source(g, node, g.value(node.out[0]).prefer, ".again");
    const std::vector<Tensor> out = g.add(*node.op, in, node.attrs, Loc::current());
    for (size_t i = 0; i < out.size(); ++i) group.copy[node.out[i]] = out[i].id();
  }
}

bool Rematerializer::recomputes(int n) const {
  return static_cast<size_t>(n) < in_loops_.size() && in_loops_[n];
}

int Rematerializer::value(int n, int value) {
  const Group* group = group_of(n);
  return group && group->copy.count(value) ? group->copy.at(value) : value;
}

int Rematerializer::recompute_group(int n) {
  return group_of(n) ? group_of(n)->recompute_group : 0;
}

}  // namespace tessera
