#include "plan/tensor_layouts/flat_ops.h"

#include <algorithm>
#include <unordered_map>

#include "base/fail.h"
#include "ir/body.h"
#include "ir/needed.h"
#include "ir/source_ops.h"
#include "lower/layout/memo_key.h"

namespace tessera {

namespace {

class Flattener {
 public:
  Flattener(FlatOps& to, const std::set<const Op*>& kernels) : to_(to), kernels_(kernels) {}

  int add_value(const Value& value, const std::string& prefix, int of) {
    to_.values.push_back({value.shape, value.dtype, prefix + value.name, -1, of});
    return static_cast<int>(to_.values.size()) - 1;
  }

  /// Adds a node of `graph`, the model or a body. `env`: by value of that graph, ours.
  void add(const Graph& graph, const Node& node, std::vector<int>& env, const std::string& prefix,
           int origin) {
    const bool is_model = prefix.empty();
    if (node.op->body && !node.op->host && !kernels_.contains(node.op)) {
      const CallTypes types = call_types(graph, node);
      const Body body = body_of({*node.op, types.in, types.out, node.attrs});
      std::vector<int> inner(body.graph.values().size(), -1);
      for (size_t i = 0; i < node.in.size(); ++i)
        inner[static_cast<size_t>(body.in[i].id())] = env[static_cast<size_t>(node.in[i])];
      std::vector<int> roots;
      for (const Tensor& out : body.out) roots.push_back(out.id());
      const std::vector<char> needed = needed_nodes(body.graph, roots);
      for (size_t n = 0; n < body.graph.nodes().size(); ++n) {
        const Node& own = body.graph.nodes()[n];
        if (needed[n] && inner[static_cast<size_t>(own.out[0])] < 0)
          add(body.graph, own, inner, prefix + node.name + ".", origin);
      }
      for (size_t i = 0; i < node.out.size(); ++i) {
        const int v = inner[static_cast<size_t>(body.out[i].id())];
        env[static_cast<size_t>(node.out[i])] = v;
        if (is_model && to_.values[static_cast<size_t>(v)].of < 0) {
          to_.values[static_cast<size_t>(v)].of = node.out[i];
          to_.values[static_cast<size_t>(v)].name = graph.value(node.out[i]).name;
        }
      }
      return;
    }
    FlatOp op{node.op, node.attrs, {}, {}, origin};
    for (const int v : node.in) op.in.push_back(env[static_cast<size_t>(v)]);
    const auto number = static_cast<int>(to_.ops.size());
    for (const int v : node.out) {
      op.out.push_back(add_value(graph.value(v), prefix, is_model ? v : -1));
      to_.values.back().made_by = number;
      env[static_cast<size_t>(v)] = op.out.back();
    }
    for (const int v : op.in) {
      std::vector<int>& readers = to_.values[static_cast<size_t>(v)].readers;
      if (readers.empty() || readers.back() != number) readers.push_back(number);
    }
    to_.ops.push_back(std::move(op));
  }

  void count_equal(const Graph& graph) {
    std::vector<int> same(to_.values.size());  // the first value that is equal
    std::unordered_map<std::string, std::vector<size_t>> known;
    for (size_t v = 0; v < same.size(); ++v) same[v] = static_cast<int>(v);
    for (size_t n = 0; n < to_.ops.size(); ++n) {
      const FlatOp& op = to_.ops[n];
      std::vector<int> in;
      for (const int v : op.in) in.push_back(same[static_cast<size_t>(v)]);
      const int group = graph.nodes()[static_cast<size_t>(op.node)].recompute_group;
      std::vector<size_t>& equal =
          known[MemoKey().add(op.op).add(in).add(op.attrs).add(group).text()];
      equal.push_back(n);
      for (size_t i = 0; i < op.out.size(); ++i)
        same[static_cast<size_t>(op.out[i])] = to_.ops[equal.front()].out[i];
    }
    for (const auto& [key, equal] : known) {
      for (const size_t n : equal) {
        to_.ops[n].equal = static_cast<int>(equal.size());
        to_.ops[n].is_again = n != equal.front();
      }
    }
  }

 private:
  FlatOps& to_;
  const std::set<const Op*>& kernels_;
};

}  // namespace

FlatOps::FlatOps(const Graph& graph, const FunctionSpec& function,
                 const std::set<const Op*>& kernels) {
  of_value.assign(graph.values().size(), -1);
  const std::vector<int> roots = roots_of(graph, function);
  const std::vector<char> needed = needed_nodes(graph, roots);
  Flattener flattener(*this, kernels);
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    if (!needed[n]) continue;
    if (node.op == &kLoop || node.loop >= 0) {
      fail(ErrorKind::unsupported,
           "the layouts of single tensors are not known inside of loops, such as that of '{}'",
           node.name);
    }
    if (node.op == &kInput || node.op == &kStored) {
      for (const int v : node.out)
        of_value[static_cast<size_t>(v)] = flattener.add_value(graph.value(v), "", v);
    } else {
      flattener.add(graph, node, of_value, "", static_cast<int>(n));
    }
  }
  for (const int v : roots)
    values[static_cast<size_t>(of_value[static_cast<size_t>(v)])].is_root = true;
  flattener.count_equal(graph);
}

}  // namespace tessera
