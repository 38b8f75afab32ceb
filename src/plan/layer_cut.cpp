// The ops of the two graphs, in order, are A L C and A L L C. The extra ops of `two` are as many as
// a layer L has, and the common end of both graphs is L C. If A ends like L does, the common end is
// longer and the layers are cut elsewhere, which is just as good.
#include "plan/layer_cut.h"

#include <algorithm>
#include <set>

#include "base/fail.h"
#include "ir/needed.h"
#include "ir/source_ops.h"
#include "tessera/op.h"

namespace tessera {

namespace {

/// The nodes on which `end` depends, in order, without those that have no operands.
std::vector<int> forward_nodes(const Graph& graph, int end) {
  const std::vector<char> needed = needed_nodes(graph, {end});
  std::vector<int> nodes;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    if (needed[n] && !graph.nodes()[n].in.empty()) nodes.push_back(static_cast<int>(n));
  }
  return nodes;
}

double seconds_of(const Graph& graph, const Node& node, const Machine& machine) {
  std::vector<ValueType> in, out;
  double bytes = 0;
  const auto add = [&](int v, std::vector<ValueType>& types) {
    const Value& value = graph.value(v);
    types.push_back({value.shape, value.dtype});
    bytes += static_cast<double>(value.shape.elements() * size_of(value.dtype));
  };
  for (const int v : node.in) add(v, in);
  for (const int v : node.out) add(v, out);
  double seconds = machine.memory_seconds(bytes);
  if (node.op->flops == nullptr) return seconds;
  const OpCall call{*node.op, in, out, node.attrs};
  double rate = machine.kernel(std::string(node.op->name), to_string(in[0].dtype)).flops;
  for (const MatmulRate& p : machine.matmuls) {
    if (rate <= 0 && p.dtype == to_string(in[0].dtype)) rate = p.flops;
  }
  return rate > 0 ? std::max(seconds, static_cast<double>(call.op.flops(call)) / rate) : seconds;
}

/// The parameters that nodes read, and their bytes.
class Params {
 public:
  explicit Params(const Graph& graph) : graph_(graph) {
    for (const Stored& s : graph.stored()) {
      if (s.purpose == Purpose::params) stored_.insert(s.value);
    }
  }
  std::set<int> read_by(const std::vector<int>& nodes, size_t first, size_t last) const {
    std::set<int> read;
    for (size_t i = first; i < last; ++i) {
      for (const int v : graph_.nodes()[nodes[i]].in) {
        if (stored_.contains(v)) read.insert(v);
      }
    }
    return read;
  }
  double bytes(const std::set<int>& values) const {
    double sum = 0;
    for (const int v : values) {
      const Value& value = graph_.value(v);
      sum += static_cast<double>(value.shape.elements() * size_of(value.dtype));
    }
    return sum;
  }

 private:
  const Graph& graph_;
  std::set<int> stored_;
};

/// Values that depend on inputs, are computed before node `cut` and read at or after it.
std::vector<int> handed_over(const Graph& graph, const std::vector<int>& nodes, size_t cut) {
  std::set<int> fed, handed;
  for (const Node& node : graph.nodes()) {
    if (node.op == &kInput) fed.insert(node.out[0]);
  }
  std::set<int> made;
  for (size_t i = 0; i < cut; ++i) {
    const Node& node = graph.nodes()[nodes[i]];
    const auto depends = [&](int v) { return fed.contains(v) || made.contains(v); };
    if (std::any_of(node.in.begin(), node.in.end(), depends))
      made.insert(node.out.begin(), node.out.end());
  }
  for (size_t i = cut; i < nodes.size(); ++i) {
    for (const int v : graph.nodes()[nodes[i]].in) {
      if (made.contains(v)) handed.insert(v);
    }
  }
  return {handed.begin(), handed.end()};
}

}  // namespace

LayerCut cut_layers(const Graph& one, int one_end, const Graph& two, int two_end,
                    const Machine& machine, const std::string& model) {
  const std::vector<int> a = forward_nodes(one, one_end), b = forward_nodes(two, two_end);
  const size_t layer = b.size() - std::min(a.size(), b.size());
  const auto same = [&](size_t i, size_t j) {
    return one.nodes()[a[i]].op == two.nodes()[b[j]].op;
  };
  size_t behind = 0, before = 0;
  while (behind < a.size() && same(a.size() - 1 - behind, b.size() - 1 - behind)) ++behind;
  while (before < a.size() && same(before, before)) ++before;
  TESSERA_REQUIRE(
      layer > 0 && behind >= layer && before + behind >= a.size(),
      "[plan] {}: with two layers the forward pass has {} ops, with one {}, and they are not "
      "those of one layer more; a pipeline needs layers that are built alike",
      model, b.size(), a.size());
  behind = std::min(behind - layer, a.size() - layer);
  before = a.size() - layer - behind;
  LayerCut cut;
  double time_before = 0, time_behind = 0;
  for (size_t i = 0; i < before; ++i) time_before += seconds_of(one, one.nodes()[a[i]], machine);
  for (size_t i = before + layer; i < a.size(); ++i)
    time_behind += seconds_of(one, one.nodes()[a[i]], machine);
  const double both = time_before + time_behind;
  cut.time_before = both > 0 ? time_before / both : 0;
  const Params params(one);
  const std::set<int> first = params.read_by(a, 0, before),
                      last = params.read_by(a, before + layer, a.size());
  std::set<int> all = first;
  all.insert(last.begin(), last.end());
  const double bytes = params.bytes(all);
  if (bytes > 0) {
    cut.params_before = params.bytes(first) / bytes;
    cut.params_behind = params.bytes(last) / bytes;
  }
  cut.handed = handed_over(two, b, before + layer);
  return cut;
}

}  // namespace tessera
