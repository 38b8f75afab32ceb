#include "lower/placed_tensors.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/fail.h"
#include "lower/flow/insert_padding_masks.h"
#include "lower/partition/partition.h"

namespace tessera {

namespace {

class TensorPlacer {
 public:
  TensorPlacer(const Graph& graph, const RuleLayouts& rules, const Flow& flow)
      : graph_(graph), rules_(rules), flow_(flow) {}

  std::vector<PlacedTensor> run(const FlowFunction& function) {
    for (const Stored& stored : graph_.stored()) {
      const Value& value = graph_.value(stored.value);
      add({value.shape, value.dtype, rules_.storage(graph_, stored), value.name},
          stored.purpose == Purpose::params ? "parameter" : "state", "stored",
          graph_.producer(stored.value).at.to_string());
    }
    walk(function.nodes);
    return std::move(tensors_);
  }

 private:
  void walk(const std::vector<FlowNode>& nodes) {
    for (const FlowNode& node : nodes) {
      if (node.loop) walk(node.loop->body);
      if (node.kind == FlowKind::stored) continue;
      for (size_t i = 0; i < node.out.size(); ++i) {
        const FlowValue& value = flow_.values[static_cast<size_t>(node.out[i])];
        const std::string source = source_of(node, i);
        sources_[node.out[i]] = source;
        add(value, node.kind == FlowKind::input ? "input" : "activation",
            std::string(node.op != nullptr ? node.op->name : to_string(node.kind)), source);
      }
    }
  }

  /// What a loop stacks or sums comes from where an iteration computes it.
  std::string source_of(const FlowNode& node, size_t result) const {
    if (!node.loop || result < node.loop->carries.size()) return node.origin.source;
    const FlowLoop& loop = *node.loop;
    const size_t i = result - loop.carries.size(), stacks = loop.stacked.size();
    if (i >= stacks + loop.sums.size()) return node.origin.source;
    const auto made = sources_.find(i < stacks ? loop.stacked[i] : loop.sums[i - stacks]);
    return made == sources_.end() ? node.origin.source : made->second;
  }

  void add(const FlowValue& value, const char* kind, const std::string& made,
           const std::string& source) {
    PlacedTensor t{value.name, source, kind, made, to_string(value.dtype), {}, {}, "", 0};
    for (size_t d = 0; d < value.layout.dims.size(); ++d) {
      const Dim& dim = value.shape[static_cast<int>(d)];
      t.dims.push_back({dim.name, dim.size, rules_.padded(dim), names(value.layout.dims[d])});
    }
    t.partial = names(value.layout.partial);
    if (!t.partial.empty()) t.combiner = to_string(value.layout.combiner);
    t.bytes = size_of(value.dtype) * rules_.local_elements(value.shape, value.layout);
    if (seen_.insert(key(t)).second) tensors_.push_back(std::move(t));
  }

  /// A layout of a tensor is told once.
  static std::string key(const PlacedTensor& t) {
    std::string text = t.name + "\n" + t.combiner;
    for (const std::string& axis : t.partial) text += "\n" + axis;
    for (const PlacedDim& d : t.dims)
      text += fmt::format("\n{} {}", d.name, fmt::join(d.axes, "+"));
    return text;
  }

  std::vector<std::string> names(const std::vector<int>& axes) const {
    std::vector<std::string> result;
    for (const int axis : axes)
      result.push_back(rules_.mesh().axes()[static_cast<size_t>(axis)].name);
    return result;
  }

  const Graph& graph_;
  const RuleLayouts& rules_;
  const Flow& flow_;
  std::vector<PlacedTensor> tensors_;
  std::set<std::string> seen_;
  std::map<int, std::string> sources_;  ///< by flow value
};

}  // namespace

std::vector<PlacedTensor> placed_tensors(const Graph& graph, const LowerOptions& options,
                                         const std::string& function) {
  const RuleLayouts rules(graph, options.mesh, options.layout, options.strict_chunks);
  Flow flow = partition(graph, rules, options.functions, options.kernels,
                        {false, options.wide_grad_reduce, options.reduce_each_microbatch, true,
                         options.strict_chunks});
  insert_padding_masks(flow, rules);
  const auto found = std::find_if(flow.functions.begin(), flow.functions.end(),
                                  [&](const FlowFunction& f) { return f.name == function; });
  TESSERA_CHECK(found != flow.functions.end(), "there is no function '{}'", function);
  return TensorPlacer(graph, rules, flow).run(*found);
}

}  // namespace tessera
