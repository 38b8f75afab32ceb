#include "tessera/storage.h"

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

}  // namespace

std::string storage_rules(const Graph& graph, const Mesh& mesh, const Layout& layout, int stage,
                          const std::string& axis) {
  require(stage >= 1 && stage <= 3,
          "zero: stage {} does not exist; 1 splits the optimizer's state, 2 gradients too, 3 "
          "parameters too",
          stage);
  const int index = mesh.find(axis);
  require(index >= 0, "zero: mesh '{}' has no axis '{}'{}", mesh.to_string(), axis,
          suggestion(axis, mesh.names()));
  const int ranks = static_cast<int>(mesh.axes()[index].size);
  if (ranks == 1) return "";
  const HomeLayouts homes(graph, mesh, layout);
  const Purpose purpose = stage == 1   ? Purpose::state
                          : stage == 2 ? Purpose::grads
                                       : Purpose::params;
  std::vector<std::pair<std::string, std::string>> chosen;  // parameter, dim
  std::map<std::string, std::set<std::string>> dims_of;     // by name without numbers
  for (const Stored& stored : graph.stored()) {
    if (stored.purpose != Purpose::params) continue;
    const Value& v = graph.value(stored.value);
    const TensorLayout own = homes.home(v.shape, v.name, purpose, v.prefer);
    const std::string dim =
        own.uses(index) ? "" : dim_to_split(homes, v, own, stored.layers, ranks);
    if (!dim.empty()) chosen.emplace_back(v.name, dim);
    dims_of[without_numbers(v.name)].insert(dim);
  }
  std::string rules;
  std::set<std::string> written;
  for (const auto& [name, dim] : chosen) {
    const std::string glob = without_numbers(name);
    const std::string& scope = dims_of[glob].size() == 1 ? glob : name;
    if (!written.insert(scope).second) continue;
    rules += fmt::format("{}@{}/*{}*/ {}:{}", rules.empty() ? "" : ";", to_string(purpose), scope,
                         dim, axis);
  }
  return rules;
}

}  // namespace tessera
