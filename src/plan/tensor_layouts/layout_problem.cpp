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
#include "plan/tensor_layouts/layout_problem.h"

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
      splits_(costs, kernels),
      moves_(costs),
      order_(find_order()) {
  build();
}

void LayoutProblem::set_weights(const ByPhase<StepWeights>& weights) {
  weights_ = weights;
  moves_.set_weights(weights);
  build();
}

/// Orders ops by the least time of their kernels.
StepOrder LayoutProblem::find_order() {
  std::vector<double> kernels;
  for (const FlatOp& op : flat_.ops) {
    double least = MovePrices::kNever;
    for (const OpSplit& way : splits_.of(flat_, op)) least = std::min(least, way.least.kernels);
    kernels.push_back(least * weight_of(static_cast<int>(kernels.size())));
  }
  return {flat_, repeats_, kernels};
}

void LayoutProblem::build() {
  problem_.name = function_.name;
  problem_.nodes.clear();
  problem_.edges.clear();
  move_edges_.clear();
  of_op_.assign(flat_.ops.size(), -1);
  ways_.assign(flat_.ops.size(), nullptr);
  for (std::vector<int>* of : {&of_value_, &of_reads_, &becomes_})
    of->assign(flat_.values.size(), -1);
  layouts_.assign(flat_.values.size(), {});
  find_updates();
  add_ops();
  add_values();
  for (size_t n = 0; n < flat_.ops.size(); ++n) {
    const FlatOp& op = flat_.ops[n];
    const auto number = static_cast<int>(n);
    for (size_t i = 0; i < op.in.size(); ++i) {
      const auto here = op.in.begin() + static_cast<std::ptrdiff_t>(i);
      if (std::find(op.in.begin(), here, op.in[i]) == here)
        add_read(op.in[i], of_op_[n], needs(number, op.in[i]), weight_of_read(op.in[i], number),
                 number);
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

void LayoutProblem::add_ops() {
  for (size_t n = 0; n < flat_.ops.size(); ++n) ways_[n] = &splits_.of(flat_, flat_.ops[n]);
  for (size_t n = 0; n < flat_.ops.size(); ++n) {
    solver::Node choice;
    for (const OpSplit& way : *ways_[n]) {
      double seconds = way.seconds;
      if (weights_) {
        const auto op = static_cast<int>(n);
        const Place place = order_.of(op);
        seconds = (*weights_)[static_cast<size_t>(place.phase)].of(least(op, way), place.beside(),
                                                                   order_.link_in(op));
      }
      choice.cost.push_back(picoseconds(seconds * weight_of(static_cast<int>(n))));
    }
    choice.usage.assign(choice.cost.size(), 0);
    of_op_[n] = static_cast<int>(problem_.nodes.size());
    problem_.nodes.push_back(std::move(choice));
  }
}

bool LayoutProblem::is_kernel(int op) const {
  const std::vector<OpSplit>& ways = *ways_[static_cast<size_t>(op)];
  return std::all_of(ways.begin(), ways.end(),
                     [](const OpSplit& way) { return way.least.kernels > 0; });
}

/// True if the value is in memory however steps are fused: kernels write and read it, or it stays.
bool LayoutProblem::is_written(int value) const {
  const auto v = static_cast<size_t>(value);
  const FlatValue& own = flat_.values[v];
  const auto is_kernel = [&](int op) { return this->is_kernel(op); };
  return own.made_by < 0 || is_kernel(own.made_by) || becomes_[v] >= 0 ||
         std::any_of(own.readers.begin(), own.readers.end(), is_kernel);
}

/// Seconds that a rank takes longer to read or write its slice than it would a fair share.
double LayoutProblem::excess(int value, const TensorLayout& layout) const {
  const Machine& machine = costs_.machine();
  const FlatValue& v = flat_.values[static_cast<size_t>(value)];
  const double bytes = static_cast<double>(v.shape.elements() * size_of(v.dtype)),
               own = static_cast<double>(slice_bytes(v, layout)),
               more = own - bytes / static_cast<double>(costs_.mesh().size());
  if (more <= 0) return 0;
  double rate = own / std::max(machine.memory_seconds(own), 1e-15);
  for (const KernelRate& kernel : machine.kernels) rate = std::max(rate, kernel.bandwidth);
  return more / rate;
}

/// The same for what an op that may be fused reads and writes for sure. Ops that read the same may
/// be one step.
double LayoutProblem::excess(int op, const OpSplit& way) const {
  if (is_kernel(op)) return 0;
  const FlatOp& own = flat_.ops[static_cast<size_t>(op)];
  double seconds = 0;
  for (size_t i = 0; i < own.in.size(); ++i) {
    const auto here = own.in.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(own.in.begin(), here, own.in[i]) != here || !is_written(own.in[i])) continue;
    const std::vector<int>& readers = flat_.values[static_cast<size_t>(own.in[i])].readers;
    const auto fused = std::count_if(readers.begin(), readers.end(),
                                     [&](int reader) { return !is_kernel(reader); });
    seconds += excess(own.in[i], way.in[i]) / static_cast<double>(fused);
  }
  for (size_t i = 0; i < own.out.size(); ++i) {
    if (is_written(own.out[i])) seconds += excess(own.out[i], way.out[i]);
  }
  return seconds;
}

std::vector<TensorLayout> LayoutProblem::layouts_of(int value) const {
  return moves_.layouts_of(flat_.values[static_cast<size_t>(value)].shape);
}

void LayoutProblem::find_updates() {
  for (const Update& u : updates_of(graph_, function_)) {
    becomes_[static_cast<size_t>(flat_.of_value[static_cast<size_t>(u.value)])] =
        flat_.of_value[static_cast<size_t>(u.stored)];
  }
}

void LayoutProblem::add_values() {
  std::vector<char> has_node(flat_.values.size(), 0);
  const auto flat = [&](int v) {
    return static_cast<size_t>(flat_.of_value[static_cast<size_t>(v)]);
  };
  reads_.assign(has_node.size(), 0);
  for (size_t v = 0; v < has_node.size(); ++v)
    reads_[v] = static_cast<int>(flat_.values[v].readers.size());
  for (const Update& u : updates_of(graph_, function_)) {
    ++reads_[flat(u.value)];
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

int64_t LayoutProblem::slice_bytes(const FlatValue& v, const TensorLayout& layout) const {
  int64_t bytes = size_of(v.dtype);
  for (int d = 0; d < v.shape.rank(); ++d) {
    int64_t slices = 1;
    for (const int axis : layout.dims[static_cast<size_t>(d)])
      slices *= costs_.mesh().axes()[static_cast<size_t>(axis)].size;
    bytes *= (v.shape[d].size + slices - 1) / slices;
  }
  return bytes;
}

int64_t LayoutProblem::stored_bytes(int value, const TensorLayout& layout) const {
  const FlatValue& v = flat_.values[static_cast<size_t>(value)];
  const int64_t bytes = slice_bytes(v, layout);
  return repeats_.of_node.empty()
             ? bytes
             : bytes * repeats_.of_node[static_cast<size_t>(graph_.value(v.of).node)];
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
    add_moves(of_value_[v], of_reads_[v], value, layouts_[v], layouts_[v], weight,
              order_.of_reads(value), order_.link_of(value));
  }
  if (!is_stored(value)) return;
  solver::Node& stored = problem_.nodes[static_cast<size_t>(of_value_[v])];
  for (size_t i = 0; i < layouts_[v].size(); ++i)
    stored.usage[i] = stored_bytes(value, layouts_[v][i]);
  stored.end = 1;
}

/// An edge that costs `times` moves of a value.
void LayoutProblem::add_moves(int a, int b, int value, Places from, Places to, double times,
                              Phase phase, int link) {
  const FlatValue& v = flat_.values[static_cast<size_t>(value)];
  // What has no operands is computed again instead.
  if (v.made_by >= 0 && flat_.ops[static_cast<size_t>(v.made_by)].in.empty()) return;
  std::vector<int64_t> costs;
  for (const double seconds : moves_.seconds(v.shape, v.dtype, from, to, phase, link))
    costs.push_back(seconds >= MovePrices::kNever ? solver::kForbidden
                                                  : picoseconds(seconds * times));
  add_edge(a, b, std::move(costs));
  move_edges_.push_back({value, {a, b}, std::move(from), std::move(to), times, phase, link});
}

LayoutProblem::Places LayoutProblem::made(int value) const {
  const auto n = static_cast<size_t>(flat_.values[static_cast<size_t>(value)].made_by);
  const std::vector<int>& out = flat_.ops[n].out;
  const auto result = static_cast<size_t>(std::find(out.begin(), out.end(), value) - out.begin());
  Places places;
  for (const OpSplit& way : *ways_[n]) places.push_back(way.out[result]);
  return places;
}

LayoutProblem::Places LayoutProblem::needs(int op, int value) const {
  const auto n = static_cast<size_t>(op);
  const std::vector<int>& in = flat_.ops[n].in;
  const auto operand = static_cast<size_t>(std::find(in.begin(), in.end(), value) - in.begin());
  Places places;
  for (const OpSplit& way : *ways_[n]) places.push_back(way.in[operand]);
  return places;
}

void LayoutProblem::add_edge(int a, int b, std::vector<int64_t> cost) {
  const bool costs = std::any_of(cost.begin(), cost.end(), [](int64_t c) { return c != 0; });
  if (costs) problem_.edges.push_back({{a, b}, std::move(cost)});
}

/// The edge from a value, or from the op that makes it, to solver node `node`, whose strategies
/// need it as `needs` says.
void LayoutProblem::add_read(int value, int node, const Places& needs, double weight, int op) {
  const auto v = static_cast<size_t>(value);
  const Phase phase = order_.of_read(value, op);
  const int link = op >= 0 ? order_.link_of(value, op) : -1;
  if (of_value_[v] < 0) {
    const int by = flat_.values[v].made_by;
    if (by < 0) return;  // it is fed as it is read
    add_moves(of_op_[static_cast<size_t>(by)], node, value, made(value), needs, weight, phase,
              link);
  } else {
    const double share = weight / std::max(1, reads_[v] - 1);
    add_moves(of_reads_[v], node, value, layouts_[v], needs, share, phase, link);
  }
}

/// The edge from an op to the node of a value that it makes.
void LayoutProblem::add_made(int value) {
  const auto v = static_cast<size_t>(value);
  if (of_value_[v] < 0) return;
  const int op = flat_.values[v].made_by;
  add_moves(of_op_[static_cast<size_t>(op)], of_value_[v], value, made(value), layouts_[v],
            weight_of(op), order_.of_reads(value), order_.link_of(value));
}

void LayoutProblem::add_updates() {
  for (const Update& u : updates_of(graph_, function_)) {
    const int value = flat_.of_value[static_cast<size_t>(u.value)],
              stored = flat_.of_value[static_cast<size_t>(u.stored)];
    if (value == stored || stored < 0) continue;
    add_read(value, of_value_[static_cast<size_t>(stored)], layouts_[static_cast<size_t>(stored)],
             weight_of(flat_.values[static_cast<size_t>(value)].made_by), -1);
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

/// What of a way no fusion takes away.
LeastTimes LayoutProblem::least(int op, const OpSplit& way) const {
  LeastTimes least = way.least;
  least.kernels += excess(op, way);
  return least;
}

ByPhase<PlacedTimes> LayoutProblem::least(const std::vector<int>& choice) {
  ByPhase<PlacedTimes> least;
  const auto strategy = [&](int node) {
    return static_cast<size_t>(choice[static_cast<size_t>(node)]);
  };
  for (size_t n = 0; n < ways_.size(); ++n) {
    const auto op = static_cast<int>(n);
    const Place place = order_.of(op);
    least[static_cast<size_t>(place.phase)].add(this->least(op, (*ways_[n])[strategy(of_op_[n])]),
                                                place.beside(), order_.link_in(op), weight_of(op));
  }
  for (const MoveEdge& edge : move_edges_) {
    const FlatValue& v = flat_.values[static_cast<size_t>(edge.value)];
    least[static_cast<size_t>(edge.phase)].add(
        moves_.least(v.shape, v.dtype, edge.from[strategy(edge.nodes[0])],
                     edge.to[strategy(edge.nodes[1])], edge.phase, edge.link),
        {}, edge.link, edge.times);
  }
  return least;
}

std::vector<int> LayoutProblem::values() const {
  std::vector<int> all;
  for (size_t v = 0; v < flat_.values.size(); ++v) {
    if (of_value_[v] >= 0 || reads_[v] > 0) all.push_back(static_cast<int>(v));
  }
  return all;
}

}  // namespace tessera
