#include "plan/optimum_rules.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/fail.h"
#include "lower/layout/rule_layouts.h"
#include "plan/name_words.h"
#include "plan/tensor_layouts/layer_names.h"

namespace tessera {

namespace {

class Writer {
 public:
  Writer(const Graph& graph, const Mesh& mesh, const std::vector<WantedLayout>& wanted)
      : graph_(graph), mesh_(mesh), wanted_(wanted) {}

  std::vector<std::string> write(std::string rules, size_t most) {
    std::vector<std::string> chosen;
    double now = reached(rules);
    while (chosen.size() < most) {
      std::string best;
      double best_reached = now;
      for (const std::string& rule : candidates(rules)) {
        const double reached = this->reached(joined(rules, rule));
        if (reached > best_reached) best_reached = reached, best = rule;
      }
      if (best.empty()) break;
      now = best_reached;
      rules = joined(rules, best);
      chosen.push_back(best);
    }
    return chosen;
  }

 private:
  static std::string joined(const std::string& rules, const std::string& rule) {
    return rules.empty() ? rule : rules + ";" + rule;
  }

  const Value& value(const WantedLayout& w) const { return graph_.value(w.value); }

  TensorLayout layout_of(const RuleLayouts& rules, const Value& v) const {
    return rules.of(v.shape, v.name, Purpose::none, v.prefer);
  }

  /// What the tensors that have their layouts are worth; less than nothing if the rules are no
  /// layout of the graph.
  double reached(const std::string& rules) const {
    try {
      const RuleLayouts layouts(graph_, mesh_, Layout::parse(rules));
      double sum = 0;
      for (const WantedLayout& w : wanted_) {
        if (layout_of(layouts, value(w)).dims == w.layout.dims) sum += w.gain;
      }
      return sum;
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::usage) throw;
      return -1;
    }
  }

  /// For each kind of difference between what is and what is wanted, a rule for each word in the
  /// names of the tensors that have it, and for the name of the tensor that is worth most.
  std::set<std::string> candidates(const std::string& rules) const {
    const RuleLayouts layouts(graph_, mesh_, Layout::parse(rules));
    std::map<std::string, double> worth;  // of clauses
    std::map<std::string, Words> words;
    std::map<std::string, std::pair<double, std::string>> first;
    for (const WantedLayout& w : wanted_) {
      const TensorLayout now = layout_of(layouts, value(w));
      std::string clause;
      for (size_t d = 0; d < now.dims.size(); ++d) {
        if (now.dims[d] == w.layout.dims[d]) continue;
        std::string axes;
        for (const int a : w.layout.dims[d])
          axes += (axes.empty() ? "" : "+") + mesh_.axes()[static_cast<size_t>(a)].name;
        const std::string& name = value(w).shape[static_cast<int>(d)].name;
        clause +=
            fmt::format("{}{}:{}", clause.empty() ? "" : " ", name, axes.empty() ? "-" : axes);
      }
      if (clause.empty()) continue;
      worth[clause] += w.gain;
      first[clause] = std::max(first[clause], {w.gain, in_all_layers(value(w).name)});
      add_words(value(w).name, words[clause]);
    }
    std::vector<std::pair<double, std::string>> order;
    for (const auto& [clause, gain] : worth) order.emplace_back(-gain, clause);
    std::sort(order.begin(), order.end());
    constexpr size_t kClauses = 8, kWords = 12;
    if (order.size() > kClauses) order.resize(kClauses);
    std::set<std::string> all;
    for (const auto& [gain, clause] : order) {
      all.insert(fmt::format("@/{}/ {}", first[clause].second, clause));
      size_t n = 0;
      for (const bool scopes : {true, false}) {  // scopes say more than nodes
        for (const auto& [word, is_scope] : words[clause]) {
          if (is_scope == scopes && n++ < kWords)
            all.insert(fmt::format("@/*{}*/ {}", word, clause));
        }
      }
    }
    return all;
  }

  const Graph& graph_;
  const Mesh& mesh_;
  const std::vector<WantedLayout>& wanted_;
};

}  // namespace

std::vector<std::string> rules_towards(const Graph& graph, const Mesh& mesh,
                                       const std::string& rules,
                                       const std::vector<WantedLayout>& wanted, size_t most) {
  return Writer(graph, mesh, wanted).write(rules, most);
}

}  // namespace tessera
