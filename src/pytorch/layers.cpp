// Nodes are cut into runs by the first number in their module's path. A body is one or several runs
// that follow one another: a layer, layers of several kinds in turn, or a layer and what stands
// between two. Two bodies are alike if their nodes correspond one to one: ops, numbers, and
// operands that are made at the same place in the body, parameters with the same name but for the
// number of their layer, which grows by the same in all, or the same value from outside. One
// operand from outside may be what the body before made: the carry. Of several lengths of a body
// that one counts that covers most nodes.
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
  NumberedPath path;          // of the first node with a number
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

/// Runs [at, at + length) as one.
Run body_of(const std::vector<Run>& runs, size_t at, size_t length) {
  Run body = runs[at];
  for (size_t i = at + 1; i < at + length; ++i) {
    body.nodes.insert(body.nodes.end(), runs[i].nodes.begin(), runs[i].nodes.end());
    body.end = runs[i].end;
    if (body.path.number < 0) body.path = runs[i].path;
  }
  return body;
}

using Names = std::map<std::string, std::string>;

/// What differs between two bodies that are alike.
struct Likeness {
  Names names;  // values of one to those of the other
  std::pair<std::string, std::string> carry;
  int64_t shift = 0;  // of the numbers of layers
};

class Finder {
 public:
  Finder(const ExportedProgram& program,
         const std::function<bool(const std::string&, const std::string&)>& are_equal)
      : program_(program), are_equal_(are_equal) {
    for (const InputSpec& input : program.inputs) inputs_[input.value] = &input;
  }

  std::optional<Likeness> compare(const Run& a, const Run& b) const {
    if (a.nodes.size() != b.nodes.size()) return {};
    std::set<std::string> inside_a;
    for (const Node* node : a.nodes) inside_a.insert(node->outputs.begin(), node->outputs.end());
    Likeness like;
    for (size_t i = 0; i < a.nodes.size(); ++i) {
      const Node &x = *a.nodes[i], &y = *b.nodes[i];
      if (x.target != y.target || x.args.size() != y.args.size() ||
          x.outputs.size() != y.outputs.size() || !corresponds(x.module, y.module, like) ||
          writes_outside(x, inside_a))
        return {};
      for (size_t k = 0; k < x.args.size(); ++k) {
        if (x.args[k].first != y.args[k].first ||
            !fits(x.args[k].second, y.args[k].second, like, inside_a))
          return {};
      }
      for (size_t k = 0; k < x.outputs.size(); ++k) like.names[x.outputs[k]] = y.outputs[k];
    }
    return like.shift > 0 ? std::optional(like) : std::nullopt;
  }

 private:
  /// Whether an op that writes its operand writes what another layer or none has made.
  static bool writes_outside(const Node& node, const std::set<std::string>& inside) {
    if (node.target.find("_.") == std::string::npos || node.args.empty()) return false;
    const auto* name = std::get_if<TensorName>(&node.args[0].second);
    return name && inside.count(name->name) == 0;
  }

  /// Whether paths differ by the number of their layer alone, and by as much as others.
  static bool corresponds(const std::string& x, const std::string& y, Likeness& like) {
    const NumberedPath a = numbered(x), b = numbered(y);
    if (a.front != b.front || a.rest != b.rest || (a.number < 0) != (b.number < 0)) return false;
    if (a.number < 0) return true;
    if (like.shift == 0) like.shift = b.number - a.number;
    return like.shift > 0 && b.number - a.number == like.shift;
  }

  bool fits(const Argument& x, const Argument& y, Likeness& like,
            const std::set<std::string>& inside_a) const {
    if (x.index() != y.index()) return false;
    if (const auto* t = std::get_if<TensorName>(&x))
      return fits(t->name, std::get<TensorName>(y).name, like, inside_a);
    if (const auto* all = std::get_if<std::vector<TensorName>>(&x)) {
      const auto& others = std::get<std::vector<TensorName>>(y);
      bool same = all->size() == others.size();
      for (size_t i = 0; same && i < all->size(); ++i)
        same = fits((*all)[i].name, others[i].name, like, inside_a);
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

  bool fits(const std::string& x, const std::string& y, Likeness& like,
            const std::set<std::string>& inside_a) const {
    auto& [names, carry, shift] = like;
    const auto known = names.find(x);
    if (known != names.end()) return known->second == y;
    names[x] = y;
    if (x == y) return true;  // from outside
    const auto a = inputs_.find(x), b = inputs_.find(y);
    if (a != inputs_.end() && b != inputs_.end() && a->second->kind == InputSpec::Kind::parameter &&
        b->second->kind == InputSpec::Kind::parameter)
      return a->second->tied_to.empty() && b->second->tied_to.empty() &&
             numbered(a->second->name).number >= 0 &&
             corresponds(a->second->name, b->second->name, like) &&
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
    if (!makes_tensors(node)) continue;
    for (const std::string& operand : operands_of(node)) use(operand, &node);
  }
  for (const std::string& output : program.outputs) use(output, nullptr);
  use(program.loss, nullptr);
  return closed;
}

}  // namespace

std::string stacked_path(const std::string& module, const Stack& stack) {
  const NumberedPath path = numbered(module);
  if (path.number < 0) return module;
  std::string scope = path.front;
  if (path.number > 0 || stack.shift > 1) scope += fmt::format(".from{}", path.number);
  if (stack.shift > 1) scope += fmt::format("by{}", stack.shift);
  return path.rest.empty() ? scope : scope + "." + path.rest;
}

namespace {

/// Bodies of `length` runs from run `at` on; nothing if there are not two that are alike.
std::optional<Stack> find_stack(const ExportedProgram& program, const Finder& finder,
                                const std::vector<Run>& runs, size_t at, size_t length) {
  std::vector<Run> alike = {body_of(runs, at, length)};
  if (alike[0].path.number < 0) return {};
  std::vector<Likeness> steps;
  std::vector<std::string> carried;
  for (size_t n = at + length; n + length <= runs.size(); n += length) {
    const Run next = body_of(runs, n, length);
    const std::optional<Likeness> like = finder.compare(alike.back(), next);
    if (!like || like->carry.first.empty() ||
        (!steps.empty() && (like->carry.first != carried.back() || like->shift != steps[0].shift)))
      break;
    carried.push_back(like->carry.second);
    steps.push_back(*like);
    alike.push_back(next);
  }
  if (steps.empty()) return {};
  const auto last = steps.back().names.find(carried.back());
  if (last == steps.back().names.end()) return {};
  carried.push_back(last->second);
  if (!is_closed(program, alike, carried)) return {};
  Stack stack;
  stack.count = std::ssize(alike), stack.shift = steps[0].shift;
  stack.begin = alike[0].begin, stack.end = alike.back().end;
  stack.nodes = alike[0].nodes;
  stack.in = steps[0].carry.first, stack.out = carried[0], stack.last = carried.back();
  for (const InputSpec& input : program.inputs) {
    const auto next = steps[0].names.find(input.value);
    if (next == steps[0].names.end() || next->second == input.value) continue;
    stack.parameters.push_back(input.value);
    stack.of_layer.push_back({input.value});
    for (const Likeness& to : steps)
      stack.of_layer.back().push_back(to.names.at(stack.of_layer.back().back()));
  }
  return stack;
}

}  // namespace

std::vector<Stack> find_stacks(
    const ExportedProgram& program, const std::function<bool(const Node&)>& is_computed,
    const std::function<bool(const std::string&, const std::string&)>& are_equal) {
  constexpr size_t kMostRuns = 16;  // of a body
  const std::vector<Run> runs = runs_of(program.graph, is_computed);
  const Finder finder(program, are_equal);
  std::vector<Stack> stacks;
  for (size_t i = 0; i < runs.size();) {
    std::optional<Stack> best;
    size_t covered = 1;
    for (size_t length = 1; length <= kMostRuns && i + 2 * length <= runs.size(); ++length) {
      std::optional<Stack> stack = find_stack(program, finder, runs, i, length);
      const size_t runs_of_stack = stack ? static_cast<size_t>(stack->count) * length : 0;
      if (runs_of_stack <= covered) continue;
      best = std::move(stack), covered = runs_of_stack;
    }
    if (best) stacks.push_back(*std::move(best));
    i += covered;
  }
  return stacks;
}

}  // namespace tessera::pytorch
