// Every value that only one op reads needs no node of its own: a rule can give it the layout in
// which it is read, so an edge joins the op that makes it with the op that reads it.
//
// Of a value with R > 1 readers a move is made once for all that want it in one layout. A reader
// that wants it elsewhere costs 1 / (R - 1) of the move. So readers in one other layout pay at most
// the whole move, and readers in several no more than all their moves. If all R want it in one
// other layout, the value is better made in that one. A stored tensor, or one that layers hand on,
// may not be free to be: it has a second node for the layout in which its readers have it.
//
// Lowering adds equal ops on equal operands once. Each of them counts as its share here.
#include "plan/choice/layout_problem.h"

#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "ir/needed.h"

namespace tessera {

namespace {

int64_t picoseconds(double seconds) {
  return seconds >= MovePrices::kNever ? solver::kForbidden
                                       : static_cast<int64_t>(std::floor(seconds * 1e12));
}

}  // namespace

LayoutProblem::LayoutProblem(const Graph& graph, const FunctionSpec& function, const Costs& costs,
                             const std::set<const Op*>& kernels, const Repeats& repeats)
    : graph_(graph),
      function_(function),
      costs_(costs),
      repeats_(repeats),
      flat_(graph, function, kernels),
      moves_(costs),
      of_op_(flat_.ops.size(), -1),
      of_value_(flat_.values.size(), -1),
      of_reads_(flat_.values.size(), -1),
      ways_(flat_.ops.size()),
      layouts_(flat_.values.size()),
      reads_(flat_.values.size(), 0),
      becomes_(flat_.values.size(), -1) {
  problem_.name = function.name;
  add_ops(kernels);
  add_values();
  for (size_t n = 0; n < flat_.ops.size(); ++n) {
    const FlatOp& op = flat_.ops[n];
    const auto number = static_cast<int>(n);
    for (size_t i = 0; i < op.in.size(); ++i) {
      const auto here = op.in.begin() + static_cast<std::ptrdiff_t>(i);
      if (std::find(op.in.begin(), here, op.in[i]) == here)
        add_read(op.in[i], of_op_[n], needs(number, op.in[i]), weight_of_read(op.in[i], number));
    }
    for (const int v : op.out) add_made(v);
  }
  add_updates();
  add_seams();
}

double LayoutProblem::weight_of(int op) const {
  if (op < 0) return 1;
  const FlatOp& own = flat_.ops[static_cast<size_t>(op)];
  return static_cast<double>(
             repeats_.of_node.empty() ? 1 : repeats_.of_node[static_cast<size_t>(own.node)]) /
         own.equal;
}

bool LayoutProblem::is_seam(int value) const {
  const int of = flat_.values[static_cast<size_t>(value)].of;
  return of >= 0 && std::any_of(repeats_.seams.begin(), repeats_.seams.end(),
                                [&](const auto& s) { return s.first == of || s.second == of; });
}

/// How often a read stands for a move of its own: what comes from outside of the layers is moved
/// once for all of them.
double LayoutProblem::weight_of_read(int value, int op) const {
  const FlatValue& v = flat_.values[static_cast<size_t>(value)];
  if (is_seam(value)) return weight_of(op);
  if (v.made_by >= 0 || repeats_.of_node.empty() || v.of < 0) return weight_of(v.made_by);
  return static_cast<double>(
      repeats_.of_node[static_cast<size_t>(graph_.value(v.of).node)]);  // a layer's parameter
}

void LayoutProblem::add_ops(const std::set<const Op*>& kernels) {
  OpSplits splits(costs_, kernels);
  for (size_t n = 0; n < flat_.ops.size(); ++n) {
    ways_[n] = splits.of(flat_, flat_.ops[n]);
    solver::Node choice;
    for (const OpSplit& way : ways_[n])
      choice.cost.push_back(picoseconds(way.seconds * weight_of(static_cast<int>(n))));
    choice.usage.assign(choice.cost.size(), 0);
    of_op_[n] = static_cast<int>(problem_.nodes.size());
    problem_.nodes.push_back(std::move(choice));
  }
}

std::vector<TensorLayout> LayoutProblem::layouts_of(int value) const {
  return moves_.layouts_of(flat_.values[static_cast<size_t>(value)].shape);
}

void LayoutProblem::add_values() {
  std::vector<char> has_node(flat_.values.size(), 0);
  const auto flat = [&](int v) {
    return static_cast<size_t>(flat_.of_value[static_cast<size_t>(v)]);
  };
  for (size_t v = 0; v < has_node.size(); ++v)
    reads_[v] = static_cast<int>(flat_.values[v].readers.size());
  for (const Update& u : updates_of(graph_, function_)) {
    ++reads_[flat(u.value)];
    becomes_[flat(u.value)] = flat_.of_value[static_cast<size_t>(u.stored)];
  }
  for (size_t v = 0; v < has_node.size(); ++v)
    has_node[v] = reads_[v] > 1 || is_seam(static_cast<int>(v));
  for (const Tensor& t : function_.outputs) {
    ++reads_[flat(t.id())];
    has_node[flat(t.id())] = 1;
  }
  for (const Stored& s : graph_.stored()) {
    if (flat_.of_value[static_cast<size_t>(s.value)] >= 0) has_node[flat(s.value)] = 1;
  }
  for (size_t v = 0; v < has_node.size(); ++v) {
    if (has_node[v]) add_value(static_cast<int>(v));
  }
}

int64_t LayoutProblem::stored_bytes(int value, const TensorLayout& layout) const {
  const FlatValue& v = flat_.values[static_cast<size_t>(value)];
  int64_t bytes = size_of(v.dtype);
  if (!repeats_.of_node.empty())
    bytes *= repeats_.of_node[static_cast<size_t>(graph_.value(v.of).node)];
  for (int d = 0; d < v.shape.rank(); ++d) {
    int64_t slices = 1;
    for (const int axis : layout.dims[static_cast<size_t>(d)])
      slices *= costs_.mesh().axes()[static_cast<size_t>(axis)].size;
    bytes *= (v.shape[d].size + slices - 1) / slices;
  }
  return bytes;
}

bool LayoutProblem::is_stored(int value) const {
  const int of = flat_.values[static_cast<size_t>(value)].of;
  return of >= 0 && graph_.find_stored(of) != nullptr;
}

void LayoutProblem::add_value(int value) {
  const auto v = static_cast<size_t>(value);
  layouts_[v] = layouts_of(value);
  solver::Node choice;
  choice.cost.assign(layouts_[v].size(), 0);
  choice.usage = choice.cost;
  of_value_[v] = of_reads_[v] = static_cast<int>(problem_.nodes.size());
  problem_.nodes.push_back(choice);
  if (reads_[v] > 1 && (is_stored(value) || is_seam(value))) {
    double weight = weight_of(flat_.values[v].made_by);
    for (const int op : flat_.values[v].readers)
      weight = std::max(weight, weight_of_read(value, op));
    of_reads_[v] = static_cast<int>(problem_.nodes.size());
    problem_.nodes.push_back(std::move(choice));
    add_edge(of_value_[v], of_reads_[v], moves(value, layouts_[v], layouts_[v], weight));
  }
  if (!is_stored(value)) return;
  solver::Node& stored = problem_.nodes[static_cast<size_t>(of_value_[v])];
  for (size_t i = 0; i < layouts_[v].size(); ++i)
    stored.usage[i] = stored_bytes(value, layouts_[v][i]);
  stored.end = 1;
}

std::vector<int64_t> LayoutProblem::moves(int value, const Places& from, const Places& to,
                                          double times) {
  const FlatValue& v = flat_.values[static_cast<size_t>(value)];
  // What has no operands is computed again instead.
  if (v.made_by >= 0 && flat_.ops[static_cast<size_t>(v.made_by)].in.empty()) return {};
  std::vector<int64_t> costs;
  for (const double seconds : moves_.seconds(v.shape, v.dtype, from, to))
    costs.push_back(seconds >= MovePrices::kNever ? solver::kForbidden
                                                  : picoseconds(seconds * times));
  return costs;
}

LayoutProblem::Places LayoutProblem::made(int value) const {
  const auto n = static_cast<size_t>(flat_.values[static_cast<size_t>(value)].made_by);
  const std::vector<int>& out = flat_.ops[n].out;
  const auto result = static_cast<size_t>(std::find(out.begin(), out.end(), value) - out.begin());
  Places places;
  for (const OpSplit& way : ways_[n]) places.push_back(way.out[result]);
  return places;
}

LayoutProblem::Places LayoutProblem::needs(int op, int value) const {
  const auto n = static_cast<size_t>(op);
  const std::vector<int>& in = flat_.ops[n].in;
  const auto operand = static_cast<size_t>(std::find(in.begin(), in.end(), value) - in.begin());
  Places places;
  for (const OpSplit& way : ways_[n]) places.push_back(way.in[operand]);
  return places;
}

void LayoutProblem::add_edge(int a, int b, std::vector<int64_t> cost) {
  const bool costs = std::any_of(cost.begin(), cost.end(), [](int64_t c) { return c != 0; });
  if (costs) problem_.edges.push_back({{a, b}, std::move(cost)});
}

/// The edge from a value, or from the op that makes it, to solver node `node`, whose strategies
/// need it as `needs` says.
void LayoutProblem::add_read(int value, int node, const Places& needs, double weight) {
  const auto v = static_cast<size_t>(value);
  if (of_value_[v] < 0) {
    const int op = flat_.values[v].made_by;
    if (op < 0) return;  // it is fed as it is read
    add_edge(of_op_[static_cast<size_t>(op)], node, moves(value, made(value), needs, weight));
  } else {
    const double share = weight / std::max(1, reads_[v] - 1);
    add_edge(of_reads_[v], node, moves(value, layouts_[v], needs, share));
  }
}

/// The edge from an op to the node of a value that it makes.
void LayoutProblem::add_made(int value) {
  const auto v = static_cast<size_t>(value);
  if (of_value_[v] < 0) return;
  const int op = flat_.values[v].made_by;
  add_edge(of_op_[static_cast<size_t>(op)], of_value_[v],
           moves(value, made(value), layouts_[v], weight_of(op)));
}

void LayoutProblem::add_updates() {
  for (const Update& u : updates_of(graph_, function_)) {
    const int value = flat_.of_value[static_cast<size_t>(u.value)],
              stored = flat_.of_value[static_cast<size_t>(u.stored)];
    if (value == stored || stored < 0) continue;
    add_read(value, of_value_[static_cast<size_t>(stored)], layouts_[static_cast<size_t>(stored)],
             weight_of(flat_.values[static_cast<size_t>(value)].made_by));
  }
}

void LayoutProblem::add_seams() {
  for (const auto& [a, b] : repeats_.seams) {
    const int p = flat_.of_value[static_cast<size_t>(a)],
              q = flat_.of_value[static_cast<size_t>(b)];
    if (p < 0 || q < 0 || p == q) continue;
    const auto x = static_cast<size_t>(p), y = static_cast<size_t>(q);
    std::vector<int64_t> cost;
    for (const TensorLayout& one : layouts_[x]) {
      for (const TensorLayout& other : layouts_[y])
        cost.push_back(one.dims == other.dims ? 0 : solver::kForbidden);
    }
    add_edge(of_value_[x], of_value_[y], std::move(cost));
  }
}

TensorLayout LayoutProblem::layout(const std::vector<int>& choice, int value) const {
  const auto v = static_cast<size_t>(value);
  if (const int node = of_value_[v]; node >= 0) {
    const auto strategy = static_cast<size_t>(choice[static_cast<size_t>(node)]);
    return layouts_[v][strategy];
  }
  if (flat_.values[v].readers.empty()) return layout(choice, becomes_[v]);
  const int op = flat_.values[v].readers[0];
  const auto way =
      static_cast<size_t>(choice[static_cast<size_t>(of_op_[static_cast<size_t>(op)])]);
  TensorLayout layout = needs(op, value)[way];
  layout.partial.clear();
  return layout;
}

double LayoutProblem::floor() const {
  double seconds = 0;
  for (size_t n = 0; n < ways_.size(); ++n) {
    double least = MovePrices::kNever;
    for (const OpSplit& way : ways_[n]) least = std::min(least, way.kernels);
    seconds += weight_of(static_cast<int>(n)) * least;
  }
  return seconds;
}

std::vector<int> LayoutProblem::values() const {
  std::vector<int> all;
  for (size_t v = 0; v < flat_.values.size(); ++v) {
    if (of_value_[v] >= 0 || reads_[v] > 0) all.push_back(static_cast<int>(v));
  }
  return all;
}

}  // namespace tessera
