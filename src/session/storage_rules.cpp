#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "compile/kernel_rows.h"
#include "ir/body.h"
#include "lower/layout/rule_layouts.h"
#include "tessera/storage.h"

namespace tessera {

namespace {

/// The axes that split a dim in any tensor: it is padded to a multiple of all of them in every one.
using AxesOfDims = std::map<std::string, std::set<int>>;

/// Chooses the dims of one parameter that are split.
class Splitter {
 public:
  /// Keeps references. The dims from `first` on count, those in `indexed` only if no other fits.
  Splitter(const RuleLayouts& rule_layouts, const Value& v, const TensorLayout& layout, int first,
           const std::set<std::string>& indexed, AxesOfDims& used)
      : rule_layouts_(rule_layouts),
        shape_(v.shape),
        first_(first),
        indexed_(indexed),
        used_(used),
        axes_(v.shape.rank()) {
    for (int d = 0; d < shape_.rank(); ++d)
      local_.push_back(rule_layouts.local(shape_[d], layout.dims[d]));
    elements_ = rule_layouts.local_elements(shape_, layout);
  }

  /// "dim:axes" for each dim that is split over some of `axes`.
  std::vector<std::string> split(const std::vector<int>& axes) {
    if (axes.empty() || elements_ < ranks(axes)) return {};
    if (!give(axes, 1)) {
      bool any = false;
      for (const int a : axes) any |= give({a}, 1);
      for (const int a : axes) any = any || give({a}, kHardlyPadded);
    }
    std::vector<std::string> rules;
    for (int d = 0; d < shape_.rank(); ++d) {
      std::string names;
      for (const int a : axes_[d]) names += (names.empty() ? "" : "+") + axis(a).name;
      if (!names.empty()) rules.push_back(shape_[d].name + ":" + names);
    }
    return rules;
  }

 private:
  static constexpr double kHardlyPadded = 1.5;

  const MeshAxis& axis(int a) const { return rule_layouts_.mesh().axes()[a]; }

  template <typename Axes>
  int64_t ranks(const Axes& axes) const {
    int64_t product = 1;
    for (const int a : axes) product *= axis(a).size;
    return product;
  }

  double padded(int d, const std::vector<int>& axes) const {
    std::set<int> all(axes.begin(), axes.end());
    if (auto it = used_.find(shape_[d].name); it != used_.end())
      all.insert(it->second.begin(), it->second.end());
    const int64_t multiple = ranks(all);
    return static_cast<double>((shape_[d].size + multiple - 1) / multiple * multiple);
  }

  bool is_better(int d, int than) const {
    const bool d_is = indexed_.contains(shape_[d].name),
               than_is = indexed_.contains(shape_[than].name);
    return d_is == than_is ? local_[d] > local_[than] : than_is;
  }

  /// To the largest dim that is no more than `slack` times as large then; false if there is none.
  bool give(const std::vector<int>& axes, double slack) {
    int best = -1;
    for (int d = first_; d < shape_.rank(); ++d) {
      const bool fits =
          local_[d] >= ranks(axes) &&
          padded(d, axes) <= slack * static_cast<double>(rule_layouts_.padded(shape_[d]));
      if (fits && (best < 0 || is_better(d, best))) best = d;
    }
    if (best < 0) return false;
    axes_[best].insert(axes_[best].end(), axes.begin(), axes.end());
    local_[best] = (local_[best] + ranks(axes) - 1) / ranks(axes);
    used_[shape_[best].name].insert(axes.begin(), axes.end());
    return true;
  }

  const RuleLayouts& rule_layouts_;
  const Shape& shape_;
  int first_;
  const std::set<std::string>& indexed_;
  AxesOfDims& used_;
  int64_t elements_ = 1;
  std::vector<int64_t> local_;          ///< elements of a rank, per dim
  std::vector<std::vector<int>> axes_;  ///< per dim
};

/// By value: the dims by whose index a step looks it up. Example: the rows of an embedding. If
/// another dim is split, each rank has its part of every row, and ranks exchange parts of the rows
/// that are used instead of the table or its gradient.
std::map<int, std::set<std::string>> indexed_dims(const Graph& graph) {
  std::set<int> params;
  for (const Stored& stored : graph.stored()) {
    if (stored.purpose == Purpose::params) params.insert(stored.value);
  }
  std::map<int, std::set<std::string>> indexed;
  for (const Node& node : graph.nodes()) {
    for (size_t i = 0; i < node.in.size(); ++i) {
      const int v = node.in[i];
      if (!params.contains(v) || graph.value(v).shape.rank() < 2) continue;
      const IndexSpace space = index_space(graph, node);
      for (int d = 0; d < graph.value(v).shape.rank(); ++d) {
        for (const int f : space.in[i][static_cast<size_t>(d)]) {
          if (space.factors[static_cast<size_t>(f)].role == Role::lookup)
            indexed[v].insert(graph.value(v).shape[d].name);
        }
      }
    }
  }
  return indexed;
}

/// What the rules of a layout split.
AxesOfDims axes_of_dims(const Mesh& mesh, const Layout& layout) {
  AxesOfDims axes;
  for (const LayoutRule& rule : layout.rules()) {
    for (const std::string& name : rule.axes) {
      if (const int a = mesh.find(name); a >= 0) axes[rule.dim].insert(a);
    }
  }
  return axes;
}

/// The axes that "pod+data" names.
std::vector<int> axes_of(const Mesh& mesh, const std::string& text) {
  std::vector<int> axes;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find('+', start), text.size());
    const std::string name = text.substr(start, end - start);
    const int axis = mesh.find(name);
    TESSERA_REQUIRE(axis >= 0, "zero: mesh '{}' has no axis '{}'{}", mesh.to_string(), name,
                    suggestion(name, mesh.names()));
    axes.push_back(axis);
    start = end + 1;
  }
  return axes;
}

}  // namespace

std::string storage_rules(const Graph& graph, const Mesh& mesh, const Layout& layout, int stage,
                          const std::string& axis) {
  TESSERA_REQUIRE(
      stage >= 1 && stage <= 3,
      "zero: stage {} does not exist; 1 splits the optimizer's state, 2 gradients too, 3 "
      "parameters too",
      stage);
  const std::vector<int> all = axes_of(mesh, axis);
  const RuleLayouts rule_layouts(graph, mesh, layout);
  const Purpose purpose = stage == 1   ? Purpose::state
                          : stage == 2 ? Purpose::grads
                                       : Purpose::params;
  using Splits = std::vector<std::string>;
  std::vector<std::pair<std::string, Splits>> chosen;  // parameter, "dim:axes" each
  std::map<std::string, std::set<Splits>> splits_of;   // by name without numbers
  AxesOfDims used = axes_of_dims(mesh, layout);
  std::map<int, std::set<std::string>> indexed = indexed_dims(graph);
  for (const Stored& stored : graph.stored()) {
    if (stored.purpose != Purpose::params) continue;
    const Value& v = graph.value(stored.value);
    const TensorLayout own = rule_layouts.of(v.shape, v.name, purpose, v.prefer);
    std::vector<int> axes;
    std::copy_if(all.begin(), all.end(), std::back_inserter(axes),
                 [&](int a) { return !own.uses(a) && mesh.axes()[a].size > 1; });
    const Splits splits =
        Splitter(rule_layouts, v, own, stored.layers, indexed[stored.value], used).split(axes);
    if (!splits.empty()) chosen.emplace_back(v.name, splits);
    splits_of[without_numbers(v.name)].insert(splits);
  }
  std::string rules;
  std::set<std::string> written;
  for (const auto& [name, splits] : chosen) {
    const std::string glob = without_numbers(name);
    const std::string& scope = splits_of[glob].size() == 1 ? glob : name;
    if (!written.insert(scope).second) continue;
    for (std::string split : splits) {
      // A parameter that is not trained has no gradient and no state.
      if (purpose != Purpose::params) split.insert(split.find(':'), "?");
      rules +=
          fmt::format("{}@{}/*{}*/ {}", rules.empty() ? "" : ";", to_string(purpose), scope, split);
    }
  }
  return rules;
}

}  // namespace tessera
