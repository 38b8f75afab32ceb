#include "tessera/storage.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "lower/home.h"

namespace tessera {

namespace {

/// "gpt.block*.mlp.up.w" of "gpt.block12.mlp.up.w".
std::string without_numbers(const std::string& name) {
  std::string glob;
  for (const char c : name) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit) glob += c;
    if (digit && (glob.empty() || glob.back() != '*')) glob += '*';
  }
  return glob;
}

/// The dim of `v` from `first` on to split `ranks` ways; "" if none is worth it.
std::string dim_to_split(const HomeLayouts& homes, const Value& v, const TensorLayout& layout,
                         int first, int ranks) {
  std::string best;
  std::pair<bool, int64_t> best_score{false, 0};
  if (homes.local_elements(v.shape, layout) < ranks) return best;
  for (int d = first; d < v.shape.rank(); ++d) {
    const int64_t local = homes.local(v.shape[d], layout.dims[d]);
    const std::pair<bool, int64_t> score{local % ranks == 0, local};
    if (score > best_score) best = v.shape[d].name, best_score = score;
  }
  return best;
}

/// The axes that "pod+data" names.
std::vector<int> axes_of(const Mesh& mesh, const std::string& text) {
  std::vector<int> axes;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find('+', start), text.size());
    const std::string name = text.substr(start, end - start);
    const int axis = mesh.find(name);
    require(axis >= 0, "zero: mesh '{}' has no axis '{}'{}", mesh.to_string(), name,
            suggestion(name, mesh.names()));
    axes.push_back(axis);
    start = end + 1;
  }
  return axes;
}

}  // namespace

std::string storage_rules(const Graph& graph, const Mesh& mesh, const Layout& layout, int stage,
                          const std::string& axis) {
  require(stage >= 1 && stage <= 3,
          "zero: stage {} does not exist; 1 splits the optimizer's state, 2 gradients too, 3 "
          "parameters too",
          stage);
  const std::vector<int> all = axes_of(mesh, axis);
  const HomeLayouts homes(graph, mesh, layout);
  const Purpose purpose = stage == 1   ? Purpose::state
                          : stage == 2 ? Purpose::grads
                                       : Purpose::params;
  std::vector<std::pair<std::string, std::string>> chosen;  // parameter, "dim:axes" or ""
  std::map<std::string, std::set<std::string>> splits_of;   // by name without numbers
  for (const Stored& stored : graph.stored()) {
    if (stored.purpose != Purpose::params) continue;
    const Value& v = graph.value(stored.value);
    const TensorLayout own = homes.home(v.shape, v.name, purpose, v.prefer);
    std::string axes;
    int ranks = 1;
    for (const int a : all) {
      if (own.uses(a) || mesh.axes()[a].size == 1) continue;
      ranks *= static_cast<int>(mesh.axes()[a].size);
      axes += (axes.empty() ? "" : "+") + mesh.axes()[a].name;
    }
    const std::string dim = ranks == 1 ? "" : dim_to_split(homes, v, own, stored.layers, ranks);
    const std::string split = dim.empty() ? "" : dim + ":" + axes;
    if (!split.empty()) chosen.emplace_back(v.name, split);
    splits_of[without_numbers(v.name)].insert(split);
  }
  std::string rules;
  std::set<std::string> written;
  for (const auto& [name, split] : chosen) {
    const std::string glob = without_numbers(name);
    const std::string& scope = splits_of[glob].size() == 1 ? glob : name;
    if (!written.insert(scope).second) continue;
    rules +=
        fmt::format("{}@{}/*{}*/ {}", rules.empty() ? "" : ";", to_string(purpose), scope, split);
  }
  return rules;
}

}  // namespace tessera
