// The functions are walked in order. Each op gets the layouts of its operands as they are, chooses
// its split, moves its operands to what the split needs and its results to their homes. A result
// that is partial stays so while one consumer uses it and is linear in it; with several consumers
// it is reduced once for all of them. A composite without a kernel is replaced by its body, walked
// by the same rules in a frame of its own.
#include "lower/partition.h"

#include <algorithm>

#include "base/fail.h"
#include "ir/needed.h"
#include "ir/source_ops.h"
#include "lower/key.h"
#include "lower/partial.h"
#include "lower/partitioner.h"
#include "lower/renumber.h"

namespace tessera {

void Partitioner::run(const FunctionSpec& spec) {
  std::vector<std::pair<int, int>> updates;  // (stored value, value)
  if (spec.updates) {
    for (const Update& u : graph_.updates()) updates.emplace_back(u.stored, u.value);
  }
  start(spec.name);
  Frame frame = make_frame(graph_, roots_of(graph_, spec), "", "", {});
  walk(frame);
  build_.set_again(0);
  for (const Tensor& t : spec.outputs) {
    require(graph_.producer(t.id()).loop < 0,
            "function '{}' returns '{}', which is made by each trip of a loop; return it from the "
            "trips as a carry, stacked or summed ({})",
            spec.name, t.name(), graph_.producer(t.id()).at.to_string());
    function().outputs.emplace_back(t.name(), operand(frame, t.id(), Purpose::none));
  }
  for (const auto& [stored, value] : updates) finish_update(frame, stored, value);
}

void Partitioner::run_init() {
  start("init");
  std::vector<int> roots;
  for (const Stored& s : graph_.stored()) roots.push_back(s.init);
  Frame frame = make_frame(graph_, roots, "", "", {});
  walk(frame);
  for (const Stored& s : graph_.stored()) finish_update(frame, s.value, s.init);
}

void Partitioner::start(const std::string& name) {
  build_.start(name);
  seen_.clear();
}

Frame Partitioner::make_frame(const Graph& graph, const std::vector<int>& roots, std::string prefix,
                              std::string source, std::vector<std::string> prefer) {
  Frame frame{graph,
              std::move(prefix),
              std::move(source),
              std::move(prefer),
              {},
              {},
              {},
              needed_nodes(graph, roots),
              std::vector<char>(graph.values().size(), 0)};
  frame.env.assign(graph.values().size(), -1);
  frame.uses.resize(graph.values().size());
  frame.escapes.assign(graph.values().size(), 0);
  for (int root : roots) frame.escapes[root] = frame.read[root] = 1;
  for (size_t n = graph.nodes().size(); n-- > 0;) {
    if (!frame.needed[n]) continue;
    const Node& node = graph.nodes()[n];
    std::vector<char> counts(node.in.size(), 1);
    if (node.op == &kLoop) counts = needed_results(graph, node, frame.read);
    for (size_t i = 0; i < node.in.size(); ++i) {
      if (!counts[i]) continue;
      frame.uses[node.in[i]].push_back(static_cast<int>(n));
      frame.read[node.in[i]] = 1;
    }
  }
  return frame;
}

void Partitioner::walk(Frame& frame) {
  for (size_t n = 0; n < frame.graph.nodes().size(); ++n) {
    const Node& node = frame.graph.nodes()[n];
    if (frame.needed[n] && node.loop == frame.loop && frame.env[node.out[0]] < 0)
      visit(frame, static_cast<int>(n));
  }
}

Origin Partitioner::origin(const Frame& frame, const Node& node, std::string reason) const {
  return {frame.prefix + node.name, frame.source.empty() ? node.at.to_string() : frame.source,
          std::move(reason)};
}

TensorLayout Partitioner::home(const Frame& frame, int value) const {
  if (auto it = frame.wanted.find(value); it != frame.wanted.end()) return it->second;
  if (const int stack = only_result(frame, value, Loop::Result::stack); stack >= 0) {
    TensorLayout layout = home(frame, stack);
    layout.dims.erase(layout.dims.begin());
    return layout;
  }
  const Value& v = frame.graph.value(value);
  std::vector<std::string> prefer = v.prefer;
  prefer.insert(prefer.end(), frame.prefer.begin(), frame.prefer.end());
  try {
    const std::string name = frame.prefix + v.name;
    TensorLayout layout = homes_.home(v.shape, name, v.purpose, prefer);
    if (v.purpose != Purpose::grads || frame.escapes[value]) return layout;
    // A gradient that no rule stores is sent to where the update needs it: to the state's slices.
    const bool is_stored = !(layout == homes_.home(v.shape, name, Purpose::none, prefer));
    return is_stored ? layout : homes_.home(v.shape, name, Purpose::state, prefer);
  } catch (const Contradiction& e) {
    const Origin from = origin(frame, frame.graph.producer(value));
    const std::string inside = frame.tensor.empty() ? "" : ", inside '" + frame.tensor + "'";
    throw Contradiction(fmt::format("{} ({}{})", e.what(), from.source, inside));
  }
}

int Partitioner::move(int value, const TensorLayout& to, const Origin& origin) {
  return build_.move(value, to, origin, chooser_.resharder());
}

int Partitioner::operand(Frame& frame, int value, Purpose consumer) {
  const int flow = frame.env[value];
  check(flow >= 0, "value '{}' is used before it is made", frame.graph.value(value).name);
  if (&frame.graph != &graph_ || consumer != Purpose::none) return flow;
  if (!graph_.find_stored(value) && graph_.producer(value).op != &kLoopSlice) return flow;
  return move(flow, home(frame, value), origin(frame, frame.graph.producer(value)));
}

void Partitioner::finish_update(Frame& frame, int stored, int value) {
  const Stored& record = *graph_.find_stored(stored);
  const TensorLayout storage = homes_.storage(graph_, record);
  const int moved = move(frame.env[value], storage, origin(frame, graph_.producer(value)));
  function().updates.emplace_back(static_cast<int>(&record - graph_.stored().data()), moved);
}

namespace {
/// What it makes has fewer bytes than what it reads: it is the result that is moved.
bool is_narrowing(const OpCall& call) {
  return call.op.pointwise && call.in.size() == 1 &&
         size_of(call.out[0].dtype) < size_of(call.in[0].dtype);
}
}  // namespace

void Partitioner::visit(Frame& frame, int n) {
  const Node& node = frame.graph.nodes()[n];
  if (node.op == &kInput || node.op == &kStored) return add_source(frame, node);
  if (node.op == &kLoop) return run_loop(frame, node);
  const CallTypes types = call_types(frame.graph, node);
  const OpCall call{*node.op, types.in, types.out, node.attrs};
  build_.set_again(frame.again_of(node));
  std::vector<int> in;
  const bool narrows = is_narrowing(call);
  for (int v : node.in) {
    in.push_back(narrows ? frame.env[v]
                         : operand(frame, v, frame.graph.value(node.out[0]).purpose));
  }
  if (node.op->body && keep_whole(frame, node, call, in)) return compute(frame, node, call, in);
  if (const auto body = by_slices(call, in)) {  // what is made by slices stays split like them
    const std::vector<std::string> split = split_dims(flow_value(in[0]));
    for (int& v : in) v = combined(v, origin(frame, node));
    return expand(frame, node, *body, in, split);
  }
  if (node.op->body) return expand(frame, node, body_of(call), in);
  compute(frame, node, call, in);
}

void Partitioner::add_source(Frame& frame, const Node& node) {
  const Value& v = frame.graph.value(node.out[0]);
  FlowNode flow;
  flow.origin = origin(frame, node);
  FlowValue value{v.shape, v.dtype, home(frame, node.out[0]), v.name, -1};
  flow.kind = FlowKind::input;
  if (const Stored* record = frame.graph.find_stored(node.out[0])) {
    flow.kind = FlowKind::stored;
    flow.stored = static_cast<int>(record - graph_.stored().data());
    value.layout = homes_.storage(graph_, *record);
  }
  flow.out = {add_value(std::move(value))};
  frame.env[node.out[0]] = flow.out[0];
  add_node(std::move(flow));
}

void Partitioner::compute(Frame& frame, const Node& node, const OpCall& call, std::vector<int> in) {
  std::vector<TensorLayout> layouts, homes;
  const IndexSpace& space = chooser_.space(call);
  if (space.same_order && !nests(space)) in[0] = combined(in[0], origin(frame, node));
  for (int v : in) layouts.push_back(flow_value(v).layout);
  for (int v : node.out) homes.push_back(home_of_result(frame, node, v));
  const Choice& choice = aim(frame, node, call, layouts, homes);
  if (space.same_order && better_renumbered(call, space, layouts[0], homes[0], choice, homes_)) {
    const Origin from = origin(frame, node);
    const int out = build_.renumber(
        in[0], {call.out[0].shape, call.out[0].dtype, homes[0], from.name, -1}, from);
    frame.env[node.out[0]] = out;
    return;
  }
  for (size_t i = 0; i < in.size(); ++i)
    in[i] = build_.move(in[i], choice.in[i], origin(frame, node), chooser_.resharder());
  enter_once(node, frame.again_of(node), in, choice, origin(frame, node));
  FlowNode flow;
  flow.op = node.op;
  flow.attrs = node.attrs;
  flow.in = in;
  flow.splits = choice.splits;
  flow.space = space;
  flow.origin = origin(frame, node);
  const std::vector<int> out = add_op(std::move(flow), call, choice, frame, node);
  for (size_t i = 0; i < node.out.size(); ++i) {
    frame.env[node.out[i]] = settle(frame, node.out[i], out[i], homes[i], origin(frame, node));
  }
}

int Partitioner::combined(int value, const Origin& origin) {
  TensorLayout layout = flow_value(value).layout;
  layout.partial.clear();
  return move(value, layout, origin);
}

void Partitioner::enter_once(const Node& node, int again, std::vector<int>& in,
                             const Choice& choice, const Origin& origin) {
  uint32_t partial = 0;
  std::vector<int> axes;
  for (size_t i = 0; i < in.size(); ++i) {
    for (int axis : choice.in[i].layout.partial) {
      partial |= 1u << i;
      if (std::find(axes.begin(), axes.end(), axis) == axes.end()) axes.push_back(axis);
    }
  }
  if (partial == 0) return;
  // A cast is linear where it widens; only then it gets such an operand.
  const uint32_t set = node.op == &kCast ? 1u : linear_in(*node.op, partial);
  check(set != 0, "[{}] got a partial operand in which it is not linear", node.op->name);
  for (size_t i = 0; i < in.size(); ++i) {
    if (!(set >> i & 1)) continue;
    FlowNode flow;
    flow.kind = FlowKind::first_only;
    for (int axis : axes) {
      const auto& own = choice.in[i].layout.partial;
      if (std::find(own.begin(), own.end(), axis) == own.end()) flow.axes.push_back(axis);
    }
    if (flow.axes.empty()) continue;
    const Key key = Key().add(std::string_view("first_only")).add(in[i]).add(flow.axes).add(again);
    auto [it, is_new] = seen_.emplace(key.text(), std::vector<int>{});
    if (is_new) {
      FlowValue value = flow_value(in[i]);
      value.layout.partial.insert(value.layout.partial.end(), flow.axes.begin(), flow.axes.end());
      std::sort(value.layout.partial.begin(), value.layout.partial.end());
      flow.in = {in[i]};
      flow.origin = {value.name, origin.source, "added once to a sum that is still partial"};
      it->second = flow.out = {add_value(std::move(value))};
      add_node(std::move(flow));
    }
    in[i] = it->second[0];
  }
}

std::vector<int> Partitioner::add_op(FlowNode flow, const OpCall& call, const Choice& choice,
                                     const Frame& frame, const Node& node) {
  Key key = Key().add(flow.op).add(flow.in).add(flow.attrs).add(flow.splits);
  key.add(frame.again_of(node));
  auto [it, is_new] = seen_.emplace(key.text(), std::vector<int>{});
  if (is_new) {
    for (size_t i = 0; i < call.out.size(); ++i) {
      const std::string name = frame.prefix + frame.graph.value(node.out[i]).name;
      it->second.push_back(
          add_value({call.out[i].shape, call.out[i].dtype, choice.out[i], name, -1}));
    }
    flow.out = it->second;
    add_node(std::move(flow));
  }
  return it->second;
}

void keep_partial(TensorLayout& target, const TensorLayout& have) {
  target.partial = have.partial;
  target.combiner = have.combiner;
  for (auto& axes : target.dims) {
    std::erase_if(axes, [&](int a) {
      return std::find(have.partial.begin(), have.partial.end(), a) != have.partial.end();
    });
  }
}

bool widens(const Graph& graph, const Node& node) {
  return node.op == &kCast &&
         size_of(graph.value(node.out[0]).dtype) > size_of(graph.value(node.in[0]).dtype);
}

int Partitioner::settle(Frame& frame, int value, int flow, TensorLayout target,
                        const Origin& origin) {
  const TensorLayout& have = flow_value(flow).layout;
  if (!have.partial.empty() && may_stay_partial(frame, value, have)) {
    keep_partial(target, have);
  } else if (!have.partial.empty()) {
    target = combined_for(frame, value, flow_value(flow), target);
  }
  return move(flow, target, origin);
}

bool Partitioner::may_stay_partial(const Frame& frame, int value, const TensorLayout& have) const {
  if (frame.escapes[value] || have.combiner != Combiner::sum || frame.uses[value].empty())
    return false;
  if (frame.graph.value(value).purpose == Purpose::grads) return false;
  const int consumer = frame.uses[value][0];
  for (int n : frame.uses[value]) {
    if (n != consumer) return false;
  }
  const Node& node = frame.graph.nodes()[consumer];
  if (node.op == &kLoop) return true;  // moved where the result is, or summed as it is
  // Summed over trips in the wider dtype, and combined once.
  if (widens(frame.graph, node) && node.loop == frame.loop &&
      (options_.wide_sums || stays_for_sum(frame, node.out[0])))
    return true;
  if (node.loop != frame.loop) return false;  // else every trip would reduce it
  return takes_partial(frame.graph, node, value, have, [&](int other) {
    return frame.env[other] >= 0 ? flow_value(frame.env[other]).layout : home(frame, other);
  });
}

Flow partition(const Graph& graph, const HomeLayouts& homes,
               const std::vector<FunctionSpec>& functions, const std::set<const Op*>& kernels,
               const PartitionOptions& options) {
  Partitioner partitioner(graph, homes, kernels, options);
  if (options.init && !graph.stored().empty()) partitioner.run_init();
  for (const FunctionSpec& spec : functions) partitioner.run(spec);
  return partitioner.take();
}

}  // namespace tessera
