#include "ir/loop_builder.h"

#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "ir/source_ops.h"
#include "tessera/ops.h"

namespace tessera {

LoopBuilder::LoopBuilder(Graph& graph, const Dim& over, bool reverse)
    : graph_(graph), number_(static_cast<int>(loops_of(graph).size())) {
  GraphInternals::of(graph).loops.push_back({over,
                                             reverse,
                                             open_loop(graph),
                                             static_cast<int>(graph.nodes().size()),
                                             -1,
                                             {},
                                             false,
                                             -1,
                                             {}});
  GraphInternals::of(graph).building.open_loop = number_;
}

LoopBuilder::~LoopBuilder() {
  if (!finished_) GraphInternals::of(graph_).building.open_loop = loop().parent;
}

Tensor LoopBuilder::index(Loc at) {
  if (index_.empty()) {
    index_ = graph_.add(kLoopIndex, {}, {{"loop", static_cast<int64_t>(number_)}}, at)[0];
  }
  return index_;
}

Tensor LoopBuilder::carry(Tensor init, Loc at) {
  Tensor value = graph_.add(kLoopCarry, {init}, {}, at)[0];
  std::deque<Value>& values = GraphInternals::of(graph_).values;
  values[value.id()].prefer = values[init.id()].prefer;
  loop().carries.push_back(value.id());
  return value;
}

Tensor LoopBuilder::slice(Tensor whole, Loc at) {
  Tensor& known = slices_[whole.id()];
  if (!known.empty()) return known;
  const Dim& over = loop().over;
  TESSERA_REQUIRE(whole.shape().has(over.name) && whole.dim(over.name) == over,
                  "[loop] '{}' {} has no dim {}={} to take slices of ({})", whole.name(),
                  whole.shape().to_string(), over.name, over.size, where(at));
  TESSERA_REQUIRE(graph_.producer(whole.id()).loop != number_,
                  "[loop] '{}' is made by the iteration that would take a slice of it ({})",
                  whole.name(), where(at));
  return known = slice_of_iteration(whole, over.name, at);
}

void LoopBuilder::condition(Tensor flag) { loop().condition = flag.id(); }

std::vector<Tensor> LoopBuilder::finish(const std::vector<Tensor>& carries,
                                        const std::vector<Tensor>& stacked,
                                        const std::vector<Tensor>& sums, Loc at) {
  Loop& loop = this->loop();
  TESSERA_CHECK(carries.size() == loop.carries.size(),
                "a loop has {} carries and its iterations make {}", loop.carries.size(),
                carries.size());
  std::vector<Tensor> made;
  for (size_t i = 0; i < carries.size(); ++i) {
    const Value& begins = graph_.value(loop.carries[i]);
    Tensor ends = carries[i];
    if (ends.shape() != begins.shape && ends.shape().has_same_dims(begins.shape))
      ends = transpose(ends, begins.shape, at);
    TESSERA_REQUIRE(
        ends.shape() == begins.shape && ends.dtype() == begins.dtype,
        "[loop] carry {} is {} {} at the beginning of an iteration and {} {} at its end; they must "
        "agree ({})",
        i, to_string(begins.dtype), begins.shape.to_string(), to_string(ends.dtype()),
        ends.shape().to_string(), where(at));
    made.push_back(ends);
    loop.results.push_back(Loop::Result::carry);
  }
  for (const Tensor& t : stacked) {
    TESSERA_REQUIRE(
        !t.shape().has(loop.over.name),
        "[loop] '{}' {} has the dim '{}' already, along which the iterations' results are stacked "
        "({})",
        t.name(), t.shape().to_string(), loop.over.name, where(at));
    made.push_back(t);
    loop.results.push_back(Loop::Result::stack);
  }
  made.insert(made.end(), sums.begin(), sums.end());
  loop.results.resize(made.size(), Loop::Result::sum);
  TESSERA_REQUIRE(!made.empty(), "[loop] the iterations leave nothing: no carry, stack or sum ({})",
                  where(at));
  std::vector<int64_t> results;
  for (const Loop::Result r : loop.results) results.push_back(static_cast<int64_t>(r));
  GraphInternals::of(graph_).building.open_loop = loop.parent;
  finished_ = true;
  const std::vector<Tensor> out = graph_.add(kLoop, made,
                                             {{"loop", static_cast<int64_t>(number_)},
                                              {"dim", loop.over.name},
                                              {"iterations", loop.over.size},
                                              {"results", std::move(results)}},
                                             at);
  loop.node = graph_.value(out[0].id()).node;
  for (size_t i = 0; i < out.size(); ++i) {
    std::vector<std::string>& prefer = GraphInternals::of(graph_).values[out[i].id()].prefer;
    if (prefer.empty()) prefer = graph_.value(made[i].id()).prefer;
  }
  for (const std::function<void()>& build : std::exchange(loop.behind, {})) build();
  return out;
}

Tensor slice_of_iteration(Tensor whole, const std::string& dim, Loc at) {
  GraphInternals& g = GraphInternals::of(whole.graph());
  const Tensor slice = whole.graph().add(kLoopSlice, {whole}, {{"dim", dim}}, at)[0];
  Value& value = g.values[slice.id()];
  value.name = g.unique(whole.name() + ".slice");
  for (const std::string& d : g.values[whole.id()].prefer) {
    if (value.shape.has(d)) value.prefer.push_back(d);
  }
  return slice;
}

Tensor add_loop_result(Graph& graph, int loop, Tensor value, Loop::Result how) {
  GraphInternals& g = GraphInternals::of(graph);
  Loop& record = g.loops[loop];
  Node& node = g.nodes[record.node];
  for (size_t i = 0; i < record.results.size(); ++i) {
    if (record.results[i] == how && node.in[i] == value.id()) return {&graph, node.out[i]};
  }
  const Value of = g.values[value.id()];
  const bool stacked = how == Loop::Result::stack;
  Value result{record.node,   stacked ? Shape{record.over}.united(of.shape) : of.shape,
               of.dtype,      g.unique(of.name + (stacked ? ".stacked" : ".sum")),
               Purpose::none, of.prefer};
  record.results.push_back(how);
  std::vector<int64_t> results = node.attrs.get<std::vector<int64_t>>("results");
  results.push_back(static_cast<int64_t>(how));
  node.attrs.set("results", std::move(results));
  node.in.push_back(value.id());
  node.out.push_back(static_cast<int>(g.values.size()));
  g.values.push_back(std::move(result));
  return {&graph, node.out.back()};
}

}  // namespace tessera
