// An iteration is walked once, with the carries in their rule layouts; the next value of a carry is
// moved back to that layout. A stored tensor is sliced in its storage layout; the iteration
// reshards its slice where it needs it. Sums stay partial from iteration to iteration, so that they
// are reduced once after the loop (unless reduce_each_microbatch). Under strict numerics a sum over
// layers is stacked, and added up behind the loop as any other sum is: stages may share it.
#include "lower/partition/loop_walker.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/fail.h"
#include "ir/needed.h"
#include "ir/source_ops.h"
#include "lower/partition/hoist_sums.h"
#include "tessera/ops.h"

namespace tessera {

void LoopWalker::add_loop(Frame& frame, const Node& node) {
  const Loop& record = loops_of(frame.graph)[loop_of(node)];
  auto loop = std::make_shared<FlowLoop>();
  loop->number = loop_of(node);
  loop->name = frame.origin(node).name;
  loop->iterations = record.over.size;
  loop->reverse = record.reverse;
  loop->stage_axis = stage_axis_of(frame, record);
  add_carries(frame, node, *loop);
  add_slices(frame, node, *loop);
  emit_.begin_iteration();
  walk_iteration(frame, record, *loop);
  const std::vector<TensorLayout> layouts = end_iteration(frame, node, *loop);
  loop->body = emit_.end_iteration();
  loop->sums_in_tree = layouts_.is_strict() && record.contiguous;
  const bool is_exact =
      !record.divided || std::has_single_bit(static_cast<uint64_t>(record.over.size));
  if (layouts_.is_strict() && record.divides && !(record.contiguous && is_exact))
    emit_.function().by_microbatches = true;
  if (loop->stage_axis >= 0) {
    loop->per_stage = rule_layouts_.padded(record.over) /
                      rule_layouts_.mesh().axes()[static_cast<size_t>(loop->stage_axis)].size;
    loop->chunks = chunks_of(frame, node, *loop);
    require_free_axis(frame, node, *loop, loop->body);
    add_stages(node, frame, *loop);
  }
  add_results(frame, node, std::move(loop), layouts);
}

bool LoopWalker::is_over_layers(const Frame& frame, const Loop& record) {
  if (record.condition >= 0) return false;
  const auto& stored = frame.graph.stored();
  return std::any_of(stored.begin(), stored.end(), [&](const Stored& s) {
    const Shape& shape = frame.graph.value(s.value).shape;
    const auto end = shape.begin() + s.layers;
    return std::find(shape.begin(), end, record.over) != end;
  });
}

/// How result `i` leaves the iterations.
Loop::Result LoopWalker::result_of(const Frame& frame, const Loop& record, size_t i) const {
  const Loop::Result result = record.results[i];
  const bool is_stacked =
      result == Loop::Result::sum && layouts_.is_strict() &&
      is_floating(
          frame.graph.value(frame.graph.nodes()[static_cast<size_t>(record.node)].out[i]).dtype) &&
      is_over_layers(frame, record);
  return is_stacked ? Loop::Result::stack : result;
}

/// Layers are stages if a global rule splits the dim that counts them over one axis. So are their
/// initial values, which no stage hands on.
int LoopWalker::stage_axis_of(const Frame& frame, const Loop& record) const {
  if (!is_over_layers(frame, record)) return -1;
  const std::vector<int> axes =
      rule_layouts_.of({record.over}, record.over.name, Purpose::none, {}).dims[0];
  return axes.size() == 1 ? axes[0] : -1;
}

/// The chunks of a stage. Throws if layers cannot be dealt to them.
int64_t LoopWalker::chunks_of(const Frame& frame, const Node& node, const FlowLoop& loop) const {
  const Dim& over = loops_of(frame.graph)[loop.number].over;
  const MeshAxis& stages = rule_layouts_.mesh().axes()[static_cast<size_t>(loop.stage_axis)];
  const int64_t chunks = rule_layouts_.chunks(over.name, loop.stage_axis);
  if (chunks > 1 && over.size % (stages.size * chunks) != 0) {
    throw Contradiction(fmt::format(
        "layout rule '{}': {} {} cannot be dealt to {} stages with {} chunks each, all alike; "
        "give the model a multiple of {}, or write the rule with other chunks, or without '*{}' "
        "({})",
        rule_layouts_.rule_text(over.name, loop.stage_axis), over.size, over.name, stages.size,
        chunks, stages.size * chunks, chunks, frame.origin(node).source));
  }
  return chunks;
}

/// Throws if a layer is computed split over the axis of its stages.
void LoopWalker::require_free_axis(const Frame& frame, const Node& node, const FlowLoop& loop,
                                   const std::vector<FlowNode>& nodes) const {
  for (const FlowNode& n : nodes) {
    if (n.loop) require_free_axis(frame, node, loop, n.loop->body);
    for (const auto* values : {&n.in, &n.out}) {
      for (int v : *values) {
        const FlowValue& value = emit_.value(v);
        for (size_t d = 0; d < value.layout.dims.size(); ++d) {
          const std::vector<int>& axes = value.layout.dims[d];
          if (std::find(axes.begin(), axes.end(), loop.stage_axis) == axes.end()) continue;
          const std::string& dim = value.shape[static_cast<int>(d)].name;
          const std::string& over = loops_of(frame.graph)[loop.number].over.name;
          throw Contradiction(fmt::format(
              "'{}' {} is split along '{}' over mesh axis '{}', whose ranks are stages of '{}' "
              "(rules '{}' and '{}'); give '{}' another axis ({})",
              value.name, value.shape.to_string(), dim,
              rule_layouts_.mesh().axes()[static_cast<size_t>(loop.stage_axis)].name, over,
              rule_layouts_.rule_text(dim, loop.stage_axis),
              rule_layouts_.rule_text(over, loop.stage_axis), dim, frame.origin(node).source));
        }
      }
    }
  }
}

/// Stage s begins with what stage s - 1 ends with; the loop ends with what the last one has. In the
/// loop of a gradient, which runs the other way, stage s + 1 and the first one.
void LoopWalker::add_stages(const Node& node, const Frame& frame, FlowLoop& loop) {
  const int axis = loop.stage_axis;
  const MeshAxis& stages = rule_layouts_.mesh().axes()[static_cast<size_t>(axis)];
  loop.stage_rule = rule_layouts_.rule_text(loops_of(frame.graph)[loop.number].over.name, axis);
  const auto exchange = [&](int carry, AffineExpr begin, const char* reason) {
    const FlowValue of = emit_.value(carry);  // new values move the others
    const Dim dim("_" + stages.name, stages.size);
    FlowValue from{Shape{dim}.united(of.shape), of.dtype, of.layout, of.name, -1};
    from.layout.dims.insert(from.layout.dims.begin(), std::vector<int>{axis});
    FlowValue to = from;
    to.layout.dims[0].clear();
    to.intervals = {{0, std::move(begin), 1, dim.size, true}};
    FlowNode move;
    move.kind = FlowKind::exchange;
    move.in = {emit_.add_value(std::move(from))};
    move.out = {emit_.add_value(std::move(to))};
    move.axes = {axis};
    move.origin = frame.origin(node, fmt::format("{}: {}", loop.stage_rule, reason));
    move.origin.name = of.name;
    return move;
  };
  AffineExpr before, last;
  before.axis_terms = {{axis, 1}};
  before.constant = loop.descends() ? 1 : -1;
  last.constant = loop.descends() ? 0 : stages.size - 1;
  for (const FlowLoop::Carry& c : loop.carries) {
    loop.to_next.push_back(exchange(c.value, before, "to the next stage"));
    loop.to_all.push_back(exchange(c.value, last, "from the last stage"));
  }
}

void LoopWalker::add_carries(const Frame& frame, const Node& node, FlowLoop& loop) {
  const Origin from = frame.origin(node);
  for (int v : loops_of(frame.graph)[loop.number].carries) {
    const int init = frame.env[frame.graph.producer(v).in[0]];
    loop.carries.push_back({emit_.move(init, layouts_.rule_layout(frame, v), from), -1, -1});
  }
}

void LoopWalker::add_slices(const Frame& frame, const Node& node, FlowLoop& loop) {
  const Loop& record = loops_of(frame.graph)[loop.number];
  for (int n = record.first; n < record.node; ++n) {
    const Node& slice = frame.graph.nodes()[n];
    if (!frame.needed[n] || slice.loop != loop.number || slice.op != &kLoopSlice) continue;
    const int whole = frame.env[slice.in[0]];
    const int dim = frame.graph.value(slice.in[0]).shape.find(record.over.name);
    TensorLayout layout = emit_.value(whole).layout;
    layout.dims[dim].clear();
    if (loop.stage_axis >= 0) layout.dims[dim] = {loop.stage_axis};
    layout.partial.clear();
    loop.slices.push_back({emit_.move(whole, layout, frame.origin(node)), slice.out[0], dim});
  }
}

void LoopWalker::walk_iteration(Frame& frame, const Loop& record, FlowLoop& loop) {
  for (size_t i = 0; i < loop.carries.size(); ++i) {
    const int v = record.carries[i];
    FlowValue value = emit_.value(loop.carries[i].init);
    value.name = frame.prefix + frame.graph.value(v).name;
    loop.carries[i].value = frame.env[v] = emit_.add_value(std::move(value));
  }
  for (FlowLoop::Slice& slice : loop.slices) {
    const int v = slice.value;
    FlowValue value = emit_.value(slice.whole);
    value.shape = frame.graph.value(v).shape;
    value.name = frame.prefix + frame.graph.value(v).name;
    std::vector<std::vector<int>> dims;
    for (const Dim& d : value.shape)
      dims.push_back(value.layout.dims[emit_.value(slice.whole).shape.find(d.name)]);
    value.layout.dims = std::move(dims);
    value.intervals.clear();
    slice.value = emit_.add_value(std::move(value));
    frame.env[v] = slice.value;
  }
  const int outside = std::exchange(frame.loop, loop.number);
  walk_(frame);
  frame.loop = outside;
  if (record.condition >= 0) loop.condition = frame.env[record.condition];
}

/// Moves the values of an iteration to the layouts of the loop's results. Returns the layouts of
/// the stacks and of the sums.
std::vector<TensorLayout> LoopWalker::end_iteration(Frame& frame, const Node& node,
                                                    FlowLoop& loop) {
  emit_.set_recompute_group(0);
  const Loop& record = loops_of(frame.graph)[loop.number];
  const Origin from = frame.origin(node);
  const std::vector<char> needed = needed_results(frame.graph, node, frame.read);
  std::vector<TensorLayout> layouts;
  for (size_t i = 0; i < node.in.size(); ++i) {
    const int value = needed[i] ? emit_.operand(frame, node.in[i], Purpose::none) : -1;
    if (i < loop.carries.size()) {
      loop.carries[i].next = emit_.move(value, emit_.value(loop.carries[i].value).layout, from);
    } else if (needed[i] && result_of(frame, record, i) == Loop::Result::stack) {
      TensorLayout layout = layouts_.loop_result_layout(frame, node.out[i]);
      if (record.results[i] == Loop::Result::stack) layout.dims.erase(layout.dims.begin());
      if (layouts_.is_reduced_as_sum(frame, node.out[i]))
        keep_partial(layout, emit_.value(value).layout);
      loop.stacked.push_back(emit_.move(value, layout, from));
    } else if (needed[i]) {
      const bool reduces =
          layouts_.reduces_each_microbatch() && !emit_.value(value).layout.partial.empty();
      loop.sums.push_back(
          reduces ? emit_.move(value, layouts_.loop_result_layout(frame, node.out[i]), from)
                  : value);
    }
  }
  for (int v : loop.stacked) {
    layouts.push_back(emit_.value(v).layout);
    layouts.back().dims.insert(layouts.back().dims.begin(), std::vector<int>{});
    if (loop.stage_axis >= 0) layouts.back().dims[0] = {loop.stage_axis};
  }
  for (int v : loop.sums) {
    layouts.push_back(emit_.value(v).layout);
    if (loop.stage_axis >= 0) layouts.back().partial.push_back(loop.stage_axis);
  }
  return layouts;
}

void LoopWalker::add_results(Frame& frame, const Node& node, std::shared_ptr<FlowLoop> loop,
                             const std::vector<TensorLayout>& layouts) {
  const Loop& record = loops_of(frame.graph)[loop->number];
  const std::vector<char> needed = needed_results(frame.graph, node, frame.read);
  FlowNode flow;
  flow.kind = FlowKind::loop;
  flow.origin = frame.origin(node);
  for (const FlowLoop::Carry& c : loop->carries) flow.in.push_back(c.init);
  for (const FlowLoop::Slice& s : loop->slices) flow.in.push_back(s.whole);
  std::vector<size_t> results;  // of the node, in the order of the flow node's results
  for (const Loop::Result kind : {Loop::Result::carry, Loop::Result::stack, Loop::Result::sum}) {
    for (size_t i = 0; i < node.out.size(); ++i) {
      if (needed[i] && result_of(frame, record, i) == kind) results.push_back(i);
    }
  }
  const auto is_stacked_sum = [&](size_t i) {
    return record.results[i] == Loop::Result::sum &&
           result_of(frame, record, i) == Loop::Result::stack;
  };
  HoistSums hoist(rule_layouts_, emit_, *loop);
  const size_t sums = loop->carries.size() + loop->stacked.size();
  if (loop->sums_in_tree) {
    hoist.run();
    if (hoist.depends_on_microbatches()) emit_.function().by_microbatches = true;
  }
  for (size_t i = 0; i < results.size() && (i < sums || !loop->sums_in_tree); ++i) {
    const Value& v = frame.graph.value(node.out[results[i]]);
    const bool carried = i < loop->carries.size();
    FlowValue value{v.shape, v.dtype, {}, frame.prefix + v.name, -1};
    if (is_stacked_sum(results[i])) value.shape = Shape{record.over}.united(v.shape);
    value.layout =
        carried ? emit_.value(loop->carries[i].value).layout : layouts[i - loop->carries.size()];
    flow.out.push_back(emit_.add_value(std::move(value)));
  }
  for (size_t i = 0; i < loop->sums.size() && loop->sums_in_tree; ++i) {
    FlowValue total = emit_.value(loop->sums[i]);
    total.node = -1;
    flow.out.push_back(emit_.add_value(std::move(total)));
  }
  flow.loop = loop;
  std::vector<int> out = flow.out;
  emit_.add_node(std::move(flow));
  if (loop->sums_in_tree) {
    const auto first = out.begin() + static_cast<std::ptrdiff_t>(sums);
    const std::vector<int> totals = hoist.add({first, out.end()}, frame, node);
    out.erase(first, out.end());
    out.insert(out.end(), totals.begin(), totals.end());
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const int v = node.out[results[i]];
    const TensorLayout layout = layouts_.loop_result_layout(frame, v);
    const int made =
        is_stacked_sum(results[i]) ? sum_over(record.over, frame, node, v, out[i]) : out[i];
    frame.env[v] = emit_.settle(frame, v, made, layout, frame.origin(node));
  }
}

/// Adds up the stack of a value that the iterations of a loop over layers leave as a sum.
int LoopWalker::sum_over(const Dim& layers, const Frame& frame, const Node& node, int value,
                         int stack) {
  Graph graph;
  const FlowValue& of = emit_.value(stack);
  const Tensor in = graph.input("layers", of.shape, of.dtype);
  const Tensor sum = reduce_sum(in, {layers.name}).named(frame.graph.value(value).name);
  Frame inner(graph, {sum.id()}, frame.prefix, frame.origin(node).source, frame.prefer);
  inner.env[static_cast<size_t>(in.id())] = stack;
  inner.outer = &frame;
  walk_(inner);
  return inner.env[static_cast<size_t>(sum.id())];
}

}  // namespace tessera
