#include "ir/loops.h"

#include <utility>

#include "base/fail.h"
#include "ir/source_ops.h"
#include "tessera/ops.h"

namespace tessera {

bool Graph::is_open(int loop) const {
  if (loop < 0) return true;
  for (int open = open_loop_; open >= 0; open = loops_[open].parent) {
    if (open == loop) return true;
  }
  return false;
}

Tensor Graph::add_result(int loop, Tensor value, Loop::Result how) {
  Loop& record = loops_[loop];
  Node& node = nodes_[record.node];
  for (size_t i = 0; i < record.results.size(); ++i) {
    if (record.results[i] == how && node.in[i] == value.id()) return {this, node.out[i]};
  }
  const Value of = values_[value.id()];
  const bool stacked = how == Loop::Result::stack;
  const std::string scope = std::exchange(scope_, "");
  Value result{record.node,   stacked ? Shape{record.over}.united(of.shape) : of.shape,
               of.dtype,      unique_name(of.name + (stacked ? ".stacked" : ".sum")),
               Purpose::none, of.prefer};
  scope_ = scope;
  record.results.push_back(how);
  std::vector<int64_t> results = node.attrs.get<std::vector<int64_t>>("results");
  results.push_back(static_cast<int64_t>(how));
  node.attrs.set("results", std::move(results));
  node.in.push_back(value.id());
  node.out.push_back(static_cast<int>(values_.size()));
  values_.push_back(std::move(result));
  return {this, node.out.back()};
}

void rename_loops(Attrs& attrs, const std::unordered_map<int, int>& copies) {
  auto renamed = [&](int64_t loop) {
    const auto it = copies.find(static_cast<int>(loop));
    return it == copies.end() ? loop : int64_t{it->second};
  };
  if (attrs.has("loop")) attrs.set("loop", renamed(attrs.get<int64_t>("loop")));
  if (attrs.has("repeat_loops")) {
    auto list = attrs.get<std::vector<int64_t>>("repeat_loops");
    for (int64_t& loop : list) loop = renamed(loop);
    attrs.set("repeat_loops", std::move(list));
  }
}

LoopBuilder::LoopBuilder(Graph& graph, const Dim& over, bool reverse)
    : graph_(graph), number_(static_cast<int>(graph.loops_.size())) {
  graph.loops_.push_back(
      {over, reverse, graph.open_loop_, static_cast<int>(graph.nodes_.size()), -1, -1, {}});
  graph.open_loop_ = number_;
}

LoopBuilder::~LoopBuilder() {
  if (!finished_) graph_.open_loop_ = graph_.loops_[number_].parent;
}

Tensor LoopBuilder::index(Loc at) {
  if (!index_) {
    index_ = graph_.add(kLoopIndex, {}, {{"loop", static_cast<int64_t>(number_)}}, at)[0];
  }
  return index_;
}

Tensor LoopBuilder::carry(Tensor init, Loc at) {
  Tensor value = graph_.add(kLoopCarry, {init}, {}, at)[0];
  graph_.values_[value.id()].prefer = graph_.values_[init.id()].prefer;
  graph_.loops_[number_].carries.push_back(value.id());
  return value;
}

Tensor LoopBuilder::slice(Tensor whole, Loc at) {
  Tensor& known = slices_[whole.id()];
  if (known) return known;
  const Dim& over = graph_.loops_[number_].over;
  require(whole.shape().has(over.name) && whole.dim(over.name) == over,
          "[loop] '{}' {} has no dim {}={} to take slices of ({})", whole.name(),
          whole.shape().to_string(), over.name, over.size, where(at));
  require(graph_.producer(whole.id()).loop != number_,
          "[loop] '{}' is made by the iteration that would take a slice of it ({})", whole.name(),
          where(at));
  return known = graph_.slice_of_iteration(whole, over.name, at);
}

Tensor Graph::slice_of_iteration(Tensor whole, const std::string& dim, Loc at) {
  const Tensor slice = add(kLoopSlice, {whole}, {{"dim", dim}}, at)[0];
  const std::string scope = std::exchange(scope_, "");
  Value& value = values_[slice.id()];
  value.name = unique_name(whole.name() + ".slice");
  scope_ = scope;
  for (const std::string& d : values_[whole.id()].prefer) {
    if (value.shape.has(d)) value.prefer.push_back(d);
  }
  return slice;
}

void LoopBuilder::condition(Tensor flag) { graph_.loops_[number_].condition = flag.id(); }

std::vector<Tensor> LoopBuilder::finish(const std::vector<Tensor>& carries,
                                        const std::vector<Tensor>& stacked,
                                        const std::vector<Tensor>& sums, Loc at) {
  Loop& loop = graph_.loops_[number_];
  check(carries.size() == loop.carries.size(), "a loop has {} carries and its iterations make {}",
        loop.carries.size(), carries.size());
  std::vector<Tensor> made;
  for (size_t i = 0; i < carries.size(); ++i) {
    const Value& begins = graph_.value(loop.carries[i]);
    Tensor ends = carries[i];
    const bool same_dims = begins.shape.united(ends.shape()).rank() == begins.shape.rank() &&
                           ends.shape().rank() == begins.shape.rank();
    if (same_dims && !(ends.shape() == begins.shape)) {
      bool same_sizes = true;
      for (const Dim& d : begins.shape) same_sizes = same_sizes && ends.dim(d.name) == d;
      if (same_sizes) ends = transpose(ends, begins.shape, at);
    }
    require(
        ends.shape() == begins.shape && ends.dtype() == begins.dtype,
        "[loop] carry {} is {} {} at the beginning of an iteration and {} {} at its end; they must "
        "agree ({})",
        i, to_string(begins.dtype), begins.shape.to_string(), to_string(ends.dtype()),
        ends.shape().to_string(), where(at));
    made.push_back(ends);
    loop.results.push_back(Loop::Result::carry);
  }
  for (const Tensor& t : stacked) {
    require(
        !t.shape().has(loop.over.name),
        "[loop] '{}' {} has the dim '{}' already, along which the iterations' results are stacked "
        "({})",
        t.name(), t.shape().to_string(), loop.over.name, where(at));
    made.push_back(t);
    loop.results.push_back(Loop::Result::stack);
  }
  for (const Tensor& t : sums) {
    made.push_back(t);
    loop.results.push_back(Loop::Result::sum);
  }
  require(!made.empty(), "[loop] the iterations leave nothing: no carry, stack or sum ({})",
          where(at));
  std::vector<int64_t> results;
  for (const Loop::Result r : loop.results) results.push_back(static_cast<int64_t>(r));
  graph_.open_loop_ = loop.parent;
  finished_ = true;
  const std::vector<Tensor> out = graph_.add(kLoop, made,
                                             {{"loop", static_cast<int64_t>(number_)},
                                              {"dim", loop.over.name},
                                              {"iterations", loop.over.size},
                                              {"results", std::move(results)}},
                                             at);
  loop.node = graph_.values_[out[0].id()].node;
  for (size_t i = 0; i < out.size(); ++i) {
    Value& value = graph_.values_[out[i].id()];
    if (!value.prefer.empty()) continue;
    for (const std::string& dim : graph_.values_[made[i].id()].prefer) value.prefer.push_back(dim);
  }
  return out;
}

}  // namespace tessera
