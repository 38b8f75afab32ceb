#include "lower/flow/flow_builder.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/fail.h"
#include "lower/flow/reason.h"
#include "lower/layout/memo_key.h"

namespace tessera {

namespace {

/// True for an op of which each result dim is the operand's dim at the same place.
bool renames_dims(const FlowNode& node) {
  if (node.op == nullptr || !node.space.same_order || node.in.size() != 1 || node.out.size() != 1)
    return false;
  const auto is_one = [](const std::vector<int>& factors) { return factors.size() == 1; };
  const std::vector<Factor>& factors = node.space.factors;
  return node.space.in[0] == node.space.out[0] &&
         std::all_of(node.space.out[0].begin(), node.space.out[0].end(), is_one) &&
         std::all_of(factors.begin(), factors.end(),
                     [](const Factor& f) { return f.role == Role::map; });
}

}  // namespace

void FlowBuilder::start(const std::string& name, FunctionKind kind) {
  flow_.functions.push_back({name, kind, false, {}, {}, {}});
  moved_.clear();
  recompute_group_ = 0;
}

// Moves added outside of a loop are reused in its iterations; those of an iteration end with it.
void FlowBuilder::begin_iteration() {
  outside_.push_back({std::exchange(function().nodes, {}), moved_});
}

std::vector<FlowNode> FlowBuilder::end_iteration() {
  std::vector<FlowNode> iteration =
      std::exchange(function().nodes, std::move(outside_.back().nodes));
  moved_ = std::move(outside_.back().moved);
  outside_.pop_back();
  return iteration;
}

int FlowBuilder::add_value(FlowValue value) {
  flow_.values.push_back(std::move(value));
  return static_cast<int>(flow_.values.size()) - 1;
}

void FlowBuilder::add_node(FlowNode node) {
  for (int v : node.out) flow_.values[v].node = static_cast<int>(function().nodes.size());
  if (node.op != nullptr && node.in.empty() && node.out.size() == 1)
    sources_.emplace(node.out[0], node);
  if (renames_dims(node)) renames_.emplace(node.out[0], node);
  function().nodes.push_back(std::move(node));
}

int FlowBuilder::move(int value, const TensorLayout& to, const Origin& origin,
                      Resharder& resharder) {
  const FlowValue from = flow_.values[value];
  const Path& path = resharder.path(from.shape, from.dtype, from.layout, to);
  if (path.bytes > 0) {
    if (const int result = recompute(value, to); result >= 0) return result;
    if (const int result = move_renamed(value, to, origin, resharder); result >= 0) return result;
  }
  for (const Move& m : path.moves) {
    const std::string key = MemoKey().add(value).add(recompute_group_).add(m.after).text();
    if (!moved_.contains(key)) {
      FlowNode node;
      node.kind = m.kind;
      node.in = {value};
      if (const int counts = counts_for(value, m, origin, resharder); counts >= 0)
        node.in.push_back(counts);
      node.axes = m.axes;
      node.from = m.from;
      node.to = m.to;
      node.combiner = flow_.values[value].layout.combiner;
      std::string reason = reason_for(flow_, rule_layouts_, value, m.axes, {m.to, m.from});
      node.origin = {from.name, origin.source, reason.empty() ? origin.reason : reason};
      const int moved =
          add_value({from.shape, from.dtype, m.after, from.name, -1, {}, from.counts});
      if (m.after.partial.empty()) flow_.values[moved].layout.combiner = Combiner::sum;
      node.out = {moved};
      add_node(std::move(node));
      moved_.emplace(key, moved);
    }
    value = moved_.at(key);
  }
  return value;
}

int FlowBuilder::counts_for(int value, const Move& m, const Origin& origin, Resharder& resharder) {
  const FlowValue v = flow_.values[value];
  if (m.kind != FlowKind::all_to_all || v.counts.value < 0) return -1;
  const int64_t ranks = rule_layouts_.slices_of(m.axes);
  const Shape& counts = flow_.values[v.counts.value].shape;
  const int rows = v.shape.find(v.counts.dim);
  if (!counts.has(v.shape[m.from].name) || !counts.has(v.shape[m.to].name)) return -1;
  TensorLayout own;
  for (const Dim& d : counts) {
    const int of_rows = v.shape.find(d.name);
    if (of_rows >= rows) return -1;
    own.dims.push_back(v.layout.dims[static_cast<size_t>(of_rows)]);
  }
  for (int d = 0; d < rows; ++d) {  // a block for each rank of the group
    const int64_t here = rule_layouts_.local(v.shape[d], v.layout.dims[static_cast<size_t>(d)]);
    if (here != (d == m.to ? ranks : 1)) return -1;
  }
  return move(v.counts.value, own, origin, resharder);
}

int FlowBuilder::recompute(int value, const TensorLayout& to) {
  const auto source = sources_.find(value);
  if (source == sources_.end()) return -1;
  const FlowValue from = flow_.values[value];
  FlowNode node = source->second;
  if (!from.layout.partial.empty() || !to.partial.empty()) return -1;
  for (size_t d = 0; d < to.dims.size(); ++d) {
    const std::vector<int>& factors = node.space.out[0][d];
    if (factors.size() != 1 || node.space.factors[factors[0]].role != Role::fresh) return -1;
    node.splits[factors[0]] = to.dims[d];
  }
  auto [it, is_new] = moved_.emplace(MemoKey().add(value).add(recompute_group_).add(to).text(), -1);
  if (!is_new) return it->second;
  it->second = add_value({from.shape, from.dtype, to, from.name, -1});
  node.out = {it->second};
  add_node(std::move(node));
  return it->second;
}

int FlowBuilder::move_renamed(int value, const TensorLayout& to, const Origin& origin,
                              Resharder& resharder) {
  const auto renamed = renames_.find(value);
  if (renamed == renames_.end()) return -1;
  const FlowValue from = flow_.values[value];
  FlowNode node = renamed->second;
  if (!(flow_.values[node.in[0]].layout == from.layout) || !from.intervals.empty()) return -1;
  const std::string key = MemoKey().add(value).add(recompute_group_).add(to).text();
  if (const auto known = moved_.find(key); known != moved_.end()) return known->second;
  node.in[0] = move(node.in[0], to, origin, resharder);
  const TensorLayout moved = flow_.values[node.in[0]].layout;
  for (size_t d = 0; d < moved.dims.size(); ++d)
    node.splits[node.space.out[0][d][0]] = moved.dims[d];
  const int result = add_value({from.shape, from.dtype, moved, from.name, -1});
  moved_.emplace(key, result);
  node.out = {result};
  add_node(std::move(node));
  return result;
}

int FlowBuilder::move(int value, const OperandPlacement& to, const Origin& origin,
                      Resharder& resharder) {
  return to.intervals.empty() ? move(value, to.layout, origin, resharder)
                              : exchange(value, to, origin);
}

int FlowBuilder::renumber(int value, FlowValue to, const Origin& origin) {
  const FlowValue from = flow_.values[value];
  const std::string key = MemoKey()
                              .add(std::string_view("renumber"))
                              .add(value)
                              .add(recompute_group_)
                              .add(to.shape)
                              .add(to.layout)
                              .text();
  if (const auto known = moved_.find(key); known != moved_.end()) return known->second;
  FlowNode node;
  node.kind = FlowKind::exchange;
  node.in = {value};
  node.axes = axes_of(slicing_of(rule_layouts_, from.shape, from.layout),
                      slicing_of(rule_layouts_, to.shape, to.layout));
  for (int a = 0; a < rule_layouts_.mesh().rank() && node.axes.empty(); ++a) {
    if (rule_layouts_.mesh().axes()[a].size > 1) node.axes = {a};  // only padding differs
  }
  std::vector<int> dims(static_cast<size_t>(from.shape.rank()));
  std::iota(dims.begin(), dims.end(), 0);
  const std::string rule = reason_for(flow_, rule_layouts_, value, node.axes, dims);
  node.origin = {to.name, origin.source,
                 fmt::format("{}{}{} becomes {}", rule, rule.empty() ? "" : ", ",
                             from.shape.to_string(), to.shape.to_string())};
  const int result = add_value(std::move(to));
  node.out = {result};
  add_node(std::move(node));
  moved_.emplace(key, result);
  return result;
}

int FlowBuilder::exchange(int value, const OperandPlacement& to, const Origin& origin) {
  const FlowValue from = flow_.values[value];
  MemoKey key = MemoKey().add(value).add(recompute_group_).add(to.layout);
  std::set<int> axes;
  for (const TensorLayout* layout : {&from.layout, &to.layout}) {
    for (const auto& of_dim : layout->dims) axes.insert(of_dim.begin(), of_dim.end());
  }
  std::vector<int> dims;
  for (const Interval& i : to.intervals) {
    key.add(i.dim).add(i.begin.to_string()).add(i.size).add(i.extent).add(i.wraps);
    dims.push_back(i.dim);
    for (const auto& [axis, factor] : i.begin.axis_terms) axes.insert(axis);
  }
  auto [it, is_new] = moved_.emplace(key.text(), -1);
  if (!is_new) return it->second;
  FlowNode node;
  node.kind = FlowKind::exchange;
  node.in = {value};
  node.axes.assign(axes.begin(), axes.end());
  const std::string rule = reason_for(flow_, rule_layouts_, value, node.axes, dims);
  node.origin = {from.name, origin.source,
                 fmt::format("{}{}{}: {}", rule, rule.empty() ? "" : ", ", origin.name,
                             describe(to.intervals, from.shape, rule_layouts_.mesh()))};
  it->second = add_value({from.shape, from.dtype, to.layout, from.name, -1, to.intervals});
  node.out = {it->second};
  add_node(std::move(node));
  return it->second;
}

}  // namespace tessera
