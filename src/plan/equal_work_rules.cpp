#include "plan/equal_work_rules.h"

#include <algorithm>
#include <cctype>

#include "ir/body.h"

namespace tessera {

namespace {

/// The scope that a node is in, without its number: "attention" of "gpt.block3.attention.seen".
std::string scope_of(const std::string& name) {
  const size_t end = name.rfind('.');
  if (end == std::string::npos || end == 0) return "";
  const size_t dot = name.rfind('.', end - 1);
  const size_t begin = dot == std::string::npos ? 0 : dot + 1;
  std::string scope = name.substr(begin, end - begin);
  while (!scope.empty() && std::isdigit(static_cast<unsigned char>(scope.back()))) scope.pop_back();
  return scope;
}

class Rules {
 public:
  Rules(const Graph& graph, const StepSummary& summary, const Space& space, const Assignment& a)
      : graph_(graph), summary_(summary), space_(space), a_(a) {}

  std::vector<SegmentRule> all() {
    for (const Node& node : graph_.nodes()) {
      if (node.op->body && node.op->by_slices) add(node);
    }
    return std::move(rules_);
  }

 private:
  void add(const Node& node) {
    const CallTypes types = call_types(graph_, node);
    const OpCall call{*node.op, types.in, types.out, node.attrs};
    const std::string scope = scope_of(graph_.value(node.out[0]).name);
    for (const Dim& dim : types.in[0].shape) {
      const int64_t slices = slices_of(dim.name);
      if (!is_free(dim.name) || slices < 2 ||
          body_by_slices(call, dim.name, dim_like(call, dim.name), slices).out.empty())
        continue;
      const std::string axes = space_.axes_of(a_, dim.name);
      add(fmt::format("{}:{}*2", dim.name, axes), "", false);
      const IndexSpace space = index_space(call);
      for (int d = 0; d < types.in[0].shape.rank() && !scope.empty(); ++d) {
        const Dim& other = types.in[0].shape[d];
        const bool is_independent = space.factors[space.in[0][d][0]].role == Role::map;
        if (is_independent && is_free(other.name) && slices_of(other.name) == 1 &&
            other.size % slices == 0)
          add(fmt::format("{}:{}", other.name, axes), scope, true);
      }
    }
  }

  void add(const std::string& cut, const std::string& scope, bool is_scope) {
    const std::string text = is_scope ? fmt::format("@/*{}*/ {}", scope, cut) : cut;
    const auto is_same = [&](const SegmentRule& rule) { return rule.text == text; };
    if (std::none_of(rules_.begin(), rules_.end(), is_same))
      rules_.push_back({text, cut, is_scope, 0});
  }

  bool is_free(const std::string& dim) const {
    const int d = summary_.find(dim);
    return d >= 0 && (space_.free_dims() >> d & 1) != 0;
  }

  int64_t slices_of(const std::string& dim) const {
    const int d = summary_.find(dim);
    int64_t slices = 1;
    for (size_t axis = 0; d >= 0 && axis < a_.picks.size(); ++axis)
      slices *= a_.picks[axis] >> d & 1 ? a_.mesh.axes()[axis].size : 1;
    return slices;
  }

  /// The dim of other operands of which ranks have slices like those of `dim`, or `dim` itself.
  std::string dim_like(const OpCall& call, const std::string& dim) const {
    for (size_t i = 1; i < call.in.size(); ++i) {
      for (const Dim& other : call.in[i].shape) {
        const bool is_apart = !call.in[0].shape.has(other.name);
        if (is_apart && space_.axes_of(a_, other.name) == space_.axes_of(a_, dim))
          return other.name;
      }
    }
    return dim;
  }

  const Graph& graph_;
  const StepSummary& summary_;
  const Space& space_;
  const Assignment& a_;
  std::vector<SegmentRule> rules_;
};

}  // namespace

std::vector<SegmentRule> equal_work_rules(const Graph& graph, const StepSummary& summary,
                                          const Space& space, const Assignment& a) {
  return Rules(graph, summary, space, a).all();
}

}  // namespace tessera
