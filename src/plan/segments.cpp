#include "plan/segments.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <tuple>

#include "base/fail.h"
#include "plan/name_words.h"

namespace tessera {

namespace {

constexpr double kSmallRule = 1.0 / 64;

struct Cut {
  const Value* value;
  DimSet dims;
  double bytes;  ///< on a rank
};

class Rules {
 public:
  Rules(const Graph& graph, const StepSummary& summary, const Space& space, const Assignment& a)
      : summary_(summary), space_(space), a_(a) {
    for (const Value& v : graph.values()) {
      if (v.purpose != Purpose::none) continue;
      DimSet dims = 0;
      for (const Dim& dim : v.shape) {
        const int d = summary.find(dim.name);
        if (d >= 0) dims |= DimSet{1} << d;
      }
      values_.push_back({&v, dims, bytes_of(v, dims)});
    }
  }

  std::vector<SegmentRule> all() {
    for (size_t axis = 0; axis < a_.picks.size(); ++axis) {
      if (a_.mesh.axes()[axis].size < 2 || a_.picks[axis] == 0) continue;
      for (DimSet rest = space_.free_dims(); rest != 0; rest &= rest - 1)
        add(static_cast<int>(axis), std::countr_zero(rest));
    }
    double most = 0;
    for (const SegmentRule& rule : rules_) most = std::max(most, rule.bytes);
    std::erase_if(rules_, [&](const SegmentRule& rule) { return rule.bytes < kSmallRule * most; });
    std::stable_sort(rules_.begin(), rules_.end(), [](const SegmentRule& x, const SegmentRule& y) {
      return std::tie(x.is_scope, x.bytes) > std::tie(y.is_scope, y.bytes);
    });
    return std::move(rules_);
  }

 private:
  double bytes_of(const Value& v, DimSet dims) const {
    double bytes = static_cast<double>(v.shape.elements() * size_of(v.dtype));
    for (size_t axis = 0; axis < a_.picks.size(); ++axis) {
      if ((a_.picks[axis] & dims) != 0) bytes /= a_.mesh.axes()[axis].size;
    }
    return bytes;
  }

  bool divides(int axis, int dim) const {
    int64_t slices = a_.mesh.axes()[axis].size;
    for (size_t i = 0; i < a_.picks.size(); ++i) {
      if (a_.picks[i] >> dim & 1) slices *= a_.mesh.axes()[i].size;
    }
    return summary_.sizes[dim] % slices == 0;
  }

  void add(int axis, int dim) {
    if ((a_.picks[axis] >> dim & 1) || !divides(axis, dim)) return;
    const auto has = [&](const Cut& c) { return (c.dims >> dim & 1) != 0; };
    const auto is_whole = [&](const Cut& c) { return (c.dims & a_.picks[axis]) == 0; };
    Words words;
    for (const Cut& c : values_) {
      if (has(c) && is_whole(c)) add_words(c.value->name, words);
    }
    std::set<std::vector<size_t>> known;
    const std::string name = summary_.dims[dim], now = space_.axes_of(a_, name);
    const std::string cut_text =
        fmt::format("{}:{}{}", name, now == "-" ? "" : now + "+", a_.mesh.axes()[axis].name);
    for (const auto& [word, is_scope] : in_order(words)) {
      std::vector<size_t> cut;
      double bytes = 0, moved = 0;
      for (size_t i = 0; i < values_.size(); ++i) {
        const Cut& c = values_[i];
        if (!has(c) || c.value->name.find(word) == std::string::npos) continue;
        cut.push_back(i);
        (is_whole(c) ? bytes : moved) += c.bytes;
      }
      if (bytes <= moved || !known.insert(std::move(cut)).second) continue;
      rules_.push_back({fmt::format("@/*{}*/ {}", word, cut_text), cut_text, is_scope, bytes});
    }
  }

  /// The order in which words are tried; of several words for the same values the first counts.
  /// Scopes say more than nodes, and a word of most names, such as the model's own, says least.
  std::vector<std::pair<std::string, bool>> in_order(const Words& words) const {
    std::vector<std::pair<std::string, bool>> order(words.begin(), words.end());
    std::stable_partition(order.begin(), order.end(), [](const auto& word) { return word.second; });
    std::stable_partition(order.begin(), order.end(), [&](const auto& word) {
      const auto named = std::count_if(values_.begin(), values_.end(), [&](const Cut& c) {
        return c.value->name.find(word.first) != std::string::npos;
      });
      return static_cast<size_t>(named) < values_.size() / 2;
    });
    return order;
  }

  const StepSummary& summary_;
  const Space& space_;
  const Assignment& a_;
  std::vector<Cut> values_;
  std::vector<SegmentRule> rules_;
};

}  // namespace

std::vector<SegmentRule> segment_rules(const Graph& graph, const StepSummary& summary,
                                       const Space& space, const Assignment& a) {
  return Rules(graph, summary, space, a).all();
}

}  // namespace tessera
