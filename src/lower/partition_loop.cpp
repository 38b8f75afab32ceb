// The trips of a loop are walked once, with the carries in their homes; what a trip makes of a
// carry is brought there again. A stored tensor is sliced as it rests, and the slice is moved where
// it is needed, in its trip. Sums stay partial from trip to trip.
#include <algorithm>
#include <utility>

#include "ir/needed.h"
#include "ir/source_ops.h"
#include "lower/partitioner.h"

namespace tessera {

void Partitioner::run_loop(Frame& frame, const Node& node) {
  const int number = loop_of(node);
  const Loop& record = frame.graph.loops()[number];
  const Origin from = origin(frame, node);
  auto loop = std::make_shared<FlowLoop>();
  loop->number = number;
  loop->name = from.name;
  loop->trips = record.over.size;
  loop->reverse = record.reverse;
  for (int v : record.carries) {
    const int init = frame.env[frame.graph.producer(v).in[0]];
    loop->carries.push_back({move(init, home(frame, v), from), -1, -1});
  }
  for (int n = record.first; n < record.node; ++n) {
    const Node& slice = frame.graph.nodes()[n];
    if (!frame.needed[n] || slice.loop != number || slice.op != &kLoopSlice) continue;
    const int dim = frame.graph.value(slice.in[0]).shape.find(record.over.name);
    TensorLayout layout = flow_value(frame.env[slice.in[0]]).layout;
    layout.dims[dim].clear();
    layout.partial.clear();
    loop->slices.push_back({move(frame.env[slice.in[0]], layout, from), slice.out[0], dim});
  }
  build_.begin_trip();
  const auto seen = seen_;
  walk_trip(frame, record, number, *loop);
  const std::vector<TensorLayout> layouts = end_trip(frame, node, record, *loop);
  loop->body = build_.end_trip();
  seen_ = seen;
  add_results(frame, node, std::move(loop), layouts);
}

void Partitioner::walk_trip(Frame& frame, const Loop& record, int number, FlowLoop& loop) {
  for (size_t i = 0; i < loop.carries.size(); ++i) {
    const int v = record.carries[i];
    FlowValue value = flow_value(loop.carries[i].init);
    value.name = frame.prefix + frame.graph.value(v).name;
    loop.carries[i].value = frame.env[v] = add_value(std::move(value));
  }
  for (FlowLoop::Slice& slice : loop.slices) {
    const int v = slice.value;
    FlowValue value = flow_value(slice.whole);
    value.shape = frame.graph.value(v).shape;
    value.name = frame.prefix + frame.graph.value(v).name;
    std::vector<std::vector<int>> dims;
    for (const Dim& d : value.shape)
      dims.push_back(value.layout.dims[flow_value(slice.whole).shape.find(d.name)]);
    value.layout.dims = std::move(dims);
    value.intervals.clear();
    slice.value = add_value(std::move(value));
    frame.env[v] = slice.value;
  }
  const int outside = std::exchange(frame.loop, number);
  walk(frame);
  frame.loop = outside;
  if (record.condition >= 0) loop.condition = frame.env[record.condition];
}

int Partitioner::only_result(const Frame& frame, int value, Loop::Result kind) const {
  const std::vector<int>& uses = frame.uses[value];
  if (uses.size() != 1 || frame.escapes[value]) return -1;
  const Node& node = frame.graph.nodes()[uses[0]];
  if (node.op != &kLoop || loop_of(node) != frame.graph.producer(value).loop) return -1;
  const Loop& record = frame.graph.loops()[loop_of(node)];
  const auto in = std::find(node.in.begin(), node.in.end(), value) - node.in.begin();
  if (record.condition >= 0 && record.condition == value) return -1;
  return record.results[in] == kind ? node.out[in] : -1;
}

int Partitioner::summed_later(const Frame& frame, int value) const {
  if (const int sum = only_result(frame, value, Loop::Result::sum); sum >= 0) {
    const int more = summed_later(frame, sum);
    return more >= 0 ? more : sum;
  }
  if (const int stack = only_result(frame, value, Loop::Result::stack); stack >= 0)
    return summed_later(frame, stack);
  if (frame.uses[value].size() != 1 || frame.escapes[value]) return -1;
  const Node& node = frame.graph.nodes()[frame.uses[value][0]];
  const bool is_near = node.loop == frame.graph.producer(value).loop;
  return is_near && widens(frame.graph, node) ? summed_later(frame, node.out[0]) : -1;
}

TensorLayout Partitioner::home_of_result(const Frame& frame, int result) const {
  const int sum = options_.sums_of_parts ? summed_later(frame, result) : -1;
  const bool is_like = sum >= 0 && frame.graph.value(sum).shape == frame.graph.value(result).shape;
  return home(frame, is_like ? sum : result);
}

std::vector<TensorLayout> Partitioner::end_trip(Frame& frame, const Node& node, const Loop& record,
                                                FlowLoop& loop) {
  build_.set_again(0);
  const Origin from = origin(frame, node);
  const std::vector<char> needed = needed_results(frame.graph, node, frame.read);
  std::vector<TensorLayout> layouts;
  for (size_t i = 0; i < node.in.size(); ++i) {
    const int made = needed[i] ? operand(frame, node.in[i], Purpose::none) : -1;
    if (i < loop.carries.size()) {
      loop.carries[i].next = move(made, flow_value(loop.carries[i].value).layout, from);
    } else if (needed[i] && record.results[i] == Loop::Result::stack) {
      TensorLayout layout = home_of_result(frame, node.out[i]);
      layout.dims.erase(layout.dims.begin());
      if (stays_for_sum(frame, node.out[i])) keep_partial(layout, flow_value(made).layout);
      loop.stacked.push_back(move(made, layout, from));
    } else if (needed[i]) {
      const bool moves = options_.sums_of_parts && !flow_value(made).layout.partial.empty();
      loop.sums.push_back(moves ? move(made, home_of_result(frame, node.out[i]), from) : made);
    }
  }
  for (int v : loop.stacked) {
    layouts.push_back(flow_value(v).layout);
    layouts.back().dims.insert(layouts.back().dims.begin(), std::vector<int>{});
  }
  for (int v : loop.sums) layouts.push_back(flow_value(v).layout);
  return layouts;
}

void Partitioner::add_results(Frame& frame, const Node& node, std::shared_ptr<FlowLoop> loop,
                              const std::vector<TensorLayout>& layouts) {
  const Loop& record = frame.graph.loops()[loop->number];
  const std::vector<char> needed = needed_results(frame.graph, node, frame.read);
  FlowNode flow;
  flow.kind = FlowKind::loop;
  flow.origin = origin(frame, node);
  for (const FlowLoop::Carry& c : loop->carries) flow.in.push_back(c.init);
  for (const FlowLoop::Slice& s : loop->slices) flow.in.push_back(s.whole);
  std::vector<int> results;  // of the graph, in the order of the flow's
  for (const Loop::Result kind : {Loop::Result::carry, Loop::Result::stack, Loop::Result::sum}) {
    for (size_t i = 0; i < node.out.size(); ++i) {
      if (needed[i] && record.results[i] == kind) results.push_back(node.out[i]);
    }
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const Value& v = frame.graph.value(results[i]);
    const bool carried = i < loop->carries.size();
    FlowValue value{v.shape, v.dtype, {}, frame.prefix + v.name, -1};
    value.layout =
        carried ? flow_value(loop->carries[i].value).layout : layouts[i - loop->carries.size()];
    flow.out.push_back(add_value(std::move(value)));
  }
  flow.loop = std::move(loop);
  const std::vector<int> out = flow.out;
  add_node(std::move(flow));
  for (size_t i = 0; i < results.size(); ++i) {
    const int v = results[i];
    frame.env[v] = settle(frame, v, out[i], home_of_result(frame, v), origin(frame, node));
  }
}

}  // namespace tessera
