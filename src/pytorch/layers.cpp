// Nodes are cut into runs by the first number in their module's path. Two runs are alike if their
// nodes correspond one to one: ops, numbers, and operands that are made at the same place in the
// run, parameters with the same name in their layer, or the same value from outside. One operand
// from outside may be what the run before made: the carry.
#include "pytorch/layers.h"

#include <algorithm>
#include <optional>
#include <set>

#include "base/fail.h"
#include "pytorch/reading.h"

namespace tessera::pytorch {

namespace {

/// "model.layers" and 3 of "model.layers.3.mlp", and "mlp".
struct NumberedPath {
  std::string front, rest;
  int64_t number = -1;
};

NumberedPath numbered(const std::string& path) {
  for (size_t at = 0; at < path.size();) {
    const size_t dot = std::min(path.find('.', at), path.size());
    const std::string part = path.substr(at, dot - at);
    if (at > 0 && part.size() < 6 && part.find_first_not_of("0123456789") == std::string::npos)
      return {path.substr(0, at - 1), dot < path.size() ? path.substr(dot + 1) : "",
              std::atoll(part.c_str())};
    at = dot + 1;
  }
  return {path, "", -1};
}

struct Run {
  NumberedPath path;
  size_t begin = 0, end = 0;  // nodes of the graph
  std::vector<const Node*> nodes;
};

std::vector<Run> runs_of(const Nodes& graph, const std::function<bool(const Node&)>& is_computed) {
  std::vector<Run> runs;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (!is_computed(node)) continue;
    const NumberedPath path = numbered(node.module);
    if (runs.empty() || runs.back().path.front != path.front ||
        runs.back().path.number != path.number)
      runs.push_back({path, i, i, {}});
    runs.back().end = i + 1;
    runs.back().nodes.push_back(&node);
  }
  return runs;
}

using Names = std::map<std::string, std::string>;

class Finder {
 public:
  Finder(const ExportedProgram& program,
         const std::function<bool(const std::string&, const std::string&)>& are_equal)
      : program_(program), are_equal_(are_equal) {
    for (const InputSpec& input : program.inputs) inputs_[input.value] = &input;
  }

  /// Values of `a` to those of `b`; nothing if they are not alike. `carry`: what differs besides.
  std::optional<Names> compare(const Run& a, const Run& b,
                               std::pair<std::string, std::string>& carry) const {
    if (a.nodes.size() != b.nodes.size()) return {};
    std::set<std::string> inside_a;
    for (const Node* node : a.nodes) inside_a.insert(node->outputs.begin(), node->outputs.end());
    Names names;
    carry = {};
    for (size_t i = 0; i < a.nodes.size(); ++i) {
      const Node &x = *a.nodes[i], &y = *b.nodes[i];
      if (x.target != y.target || x.args.size() != y.args.size() ||
          x.outputs.size() != y.outputs.size() ||
          numbered(x.module).rest != numbered(y.module).rest || writes_outside(x, inside_a))
        return {};
      for (size_t k = 0; k < x.args.size(); ++k) {
        if (x.args[k].first != y.args[k].first ||
            !fits(x.args[k].second, y.args[k].second, names, inside_a, carry))
          return {};
      }
      for (size_t k = 0; k < x.outputs.size(); ++k) names[x.outputs[k]] = y.outputs[k];
    }
    return names;
  }

 private:
  /// Whether an op that writes its operand writes what another layer or none has made.
  static bool writes_outside(const Node& node, const std::set<std::string>& inside) {
    if (node.target.find("_.") == std::string::npos || node.args.empty()) return false;
    const auto* name = std::get_if<TensorName>(&node.args[0].second);
    return name && inside.count(name->name) == 0;
  }

  bool fits(const Argument& x, const Argument& y, Names& names,
            const std::set<std::string>& inside_a,
            std::pair<std::string, std::string>& carry) const {
    if (x.index() != y.index()) return false;
    if (const auto* t = std::get_if<TensorName>(&x))
      return fits(t->name, std::get<TensorName>(y).name, names, inside_a, carry);
    if (const auto* all = std::get_if<std::vector<TensorName>>(&x)) {
      const auto& others = std::get<std::vector<TensorName>>(y);
      bool same = all->size() == others.size();
      for (size_t i = 0; same && i < all->size(); ++i)
        same = fits((*all)[i].name, others[i].name, names, inside_a, carry);
      return same;
    }
    if (const auto* n = std::get_if<SymInt>(&x)) return n->symbol == std::get<SymInt>(y).symbol;
    if (std::holds_alternative<std::shared_ptr<const Nodes>>(x)) return false;
    return plain_equal(x, y);
  }

  static bool plain_equal(const Argument& x, const Argument& y) {
    return std::visit(
        [&](const auto& a) {
          using T = std::decay_t<decltype(a)>;
          if constexpr (std::is_same_v<T, TensorName> ||
                        std::is_same_v<T, std::vector<TensorName>> || std::is_same_v<T, SymInt>) {
            return false;
          } else {
            return a == std::get<T>(y);
          }
        },
        x);
  }

  bool fits(const std::string& x, const std::string& y, Names& names,
            const std::set<std::string>& inside_a,
            std::pair<std::string, std::string>& carry) const {
    const auto known = names.find(x);
    if (known != names.end()) return known->second == y;
    names[x] = y;
    if (x == y) return true;  // from outside
    const auto a = inputs_.find(x), b = inputs_.find(y);
    if (a != inputs_.end() && b != inputs_.end() && a->second->kind == InputSpec::Kind::parameter &&
        b->second->kind == InputSpec::Kind::parameter)
      return a->second->tied_to.empty() && b->second->tied_to.empty() &&
             numbered(a->second->name).rest == numbered(b->second->name).rest &&
             numbered(a->second->name).number >= 0 &&
             program_.graph.tensors.at(x).sizes == program_.graph.tensors.at(y).sizes;
    if (inside_a.count(y) != 0 && carry.first.empty()) {
      carry = {x, y};
      return true;
    }
    return are_equal_(x, y);
  }

  const ExportedProgram& program_;
  const std::function<bool(const std::string&, const std::string&)>& are_equal_;
  std::map<std::string, const InputSpec*> inputs_;
};

/// Whether nothing but the carry leaves the layers of `runs`.
bool is_closed(const ExportedProgram& program, const std::vector<Run>& runs,
               const std::vector<std::string>& carried) {
  std::map<std::string, size_t> made;
  for (size_t i = 0; i < runs.size(); ++i)
    for (const Node* node : runs[i].nodes)
      for (const std::string& output : node->outputs) made[output] = i;
  std::map<const Node*, size_t> run_of;
  for (size_t i = 0; i < runs.size(); ++i)
    for (const Node* node : runs[i].nodes) run_of[node] = i;
  bool closed = true;
  const auto use = [&](const std::string& name, const Node* by) {
    const auto found = made.find(name);
    if (name.empty() || found == made.end()) return;
    const auto user = run_of.find(by);
    const bool inside = user != run_of.end() && user->second == found->second;
    const bool passed_on =
        user != run_of.end() && user->second == found->second + 1 && name == carried[found->second];
    const bool leaves =
        user == run_of.end() && found->second + 1 == runs.size() && name == carried.back();
    closed = closed && (inside || passed_on || leaves);
  };
  for (const Node& node : program.graph.nodes) {
    if (node.outputs.empty()) continue;  // an assert
    for (const std::string& operand : operands_of(node)) use(operand, &node);
  }
  for (const std::string& output : program.outputs) use(output, nullptr);
  use(program.loss, nullptr);
  return closed;
}

}  // namespace

std::string Stack::scope() const {
  return first == 0 ? path : fmt::format("{}.from{}", path, first);
}

std::string stacked_path(const std::string& module, const Stack& stack) {
  const NumberedPath path = numbered(module);
  return path.rest.empty() ? stack.scope() : stack.scope() + "." + path.rest;
}

std::vector<Stack> find_stacks(
    const ExportedProgram& program, const std::function<bool(const Node&)>& is_computed,
    const std::function<bool(const std::string&, const std::string&)>& are_equal) {
  const std::vector<Run> runs = runs_of(program.graph, is_computed);
  const Finder finder(program, are_equal);
  std::vector<Stack> stacks;
  for (size_t i = 0; i < runs.size();) {
    size_t n = i + 1;
    std::vector<Run> alike = {runs[i]};
    std::vector<Names> names;
    std::vector<std::string> carried;
    std::string in;
    for (; n < runs.size() && runs[n].path.front == runs[i].path.front &&
           runs[i].path.number >= 0 && runs[n].path.number == runs[n - 1].path.number + 1;
         ++n) {
      std::pair<std::string, std::string> carry;
      const std::optional<Names> same = finder.compare(runs[n - 1], runs[n], carry);
      if (!same || carry.first.empty() || (!carried.empty() && carry.first != carried.back()))
        break;
      if (carried.empty()) in = carry.first;
      carried.push_back(carry.second);
      names.push_back(*same);
      alike.push_back(runs[n]);
    }
    if (alike.size() > 1) {
      const auto last = names.back().find(carried.back());
      if (last != names.back().end()) carried.push_back(last->second);
    }
    if (alike.size() < 2 || carried.size() != alike.size() || !is_closed(program, alike, carried)) {
      i = std::max(i + 1, alike.size() < 2 ? i + 1 : n);
      continue;
    }
    Stack stack;
    stack.path = runs[i].path.front, stack.first = runs[i].path.number,
    stack.count = std::ssize(alike);
    stack.begin = runs[i].begin, stack.end = runs[n - 1].end;
    stack.nodes = alike[0].nodes;
    stack.in = in, stack.out = carried[0], stack.last = carried.back();
    for (const InputSpec& input : program.inputs) {
      const auto next = names[0].find(input.value);
      if (next == names[0].end() || next->second == input.value) continue;
      stack.parameters.push_back(input.value);
      stack.of_layer.push_back({input.value});
      for (const Names& to : names)
        stack.of_layer.back().push_back(to.at(stack.of_layer.back().back()));
    }
    stacks.push_back(std::move(stack));
    i = n;
  }
  return stacks;
}

}  // namespace tessera::pytorch
