// Equal ops on equal operands are added once per function and recompute group. Ops of different
// recompute groups are never deduplicated: backward must not reuse what it is meant to recompute.
#include "lower/partition/flow_emitter.h"

#include <algorithm>

#include "base/fail.h"
#include "ir/source_ops.h"
#include "lower/layout/memo_key.h"

namespace tessera {

void FlowEmitter::start(const std::string& name, FunctionKind kind) {
  build_.start(name, kind);
  seen_.clear();
}

void FlowEmitter::begin_iteration() {
  build_.begin_iteration();
  outside_.push_back(seen_);
}

std::vector<FlowNode> FlowEmitter::end_iteration() {
  seen_ = std::move(outside_.back());
  outside_.pop_back();
  return build_.end_iteration();
}

int FlowEmitter::move(int value, const TensorLayout& to, const Origin& origin) {
  return build_.move(value, to, origin, layouts_.resharder());
}

int FlowEmitter::move(int value, const OperandPlacement& to, const Origin& origin) {
  return build_.move(value, to, origin, layouts_.resharder());
}

int FlowEmitter::renumber(int value, FlowValue to, const Origin& origin) {
  return build_.renumber(value, std::move(to), origin);
}

int FlowEmitter::reduced(int value, const Origin& origin) {
  TensorLayout layout = this->value(value).layout;
  layout.partial.clear();
  return move(value, layout, origin);
}

int FlowEmitter::operand(const Frame& frame, int value, Purpose consumer) {
  const int flow = frame.env[value];
  TESSERA_CHECK(flow >= 0, "value '{}' is used before it is made", frame.graph.value(value).name);
  if (&frame.graph != &model_ || consumer != Purpose::none) return flow;
  if (!model_.find_stored(value) && model_.producer(value).op != &kLoopSlice) return flow;
  return move(flow, layouts_.rule_layout(frame, value), frame.origin(frame.graph.producer(value)));
}

int FlowEmitter::settle(const Frame& frame, int value, int flow, const TensorLayout& target,
                        const Origin& origin) {
  return move(flow, layouts_.settled_layout(frame, value, flow, target), origin);
}

std::vector<int> FlowEmitter::add_op(FlowNode flow, const OpCall& call, const Choice& choice,
                                     const Frame& frame, const Node& node) {
  MemoKey key = MemoKey().add(flow.op).add(flow.in).add(flow.attrs).add(flow.splits);
  key.add(frame.recompute_group_of(node));
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

int FlowEmitter::cast(int value, DType dtype, const Frame& frame, const Node& node) {
  const FlowValue from = this->value(value);
  const std::vector<ValueType> in{{from.shape, from.dtype}}, out{{from.shape, dtype}};
  FlowNode flow;
  flow.op = &kCast;
  flow.attrs = {{"dtype", static_cast<int64_t>(dtype)}};
  flow.in = {value};
  const OpCall call{kCast, in, out, flow.attrs};
  flow.space = layouts_.space(call);
  Choice choice;
  choice.splits.resize(flow.space.factors.size());
  for (size_t d = 0; d < from.layout.dims.size(); ++d)
    choice.splits[static_cast<size_t>(flow.space.in[0][d][0])] = from.layout.dims[d];
  choice.out = {from.layout};
  flow.splits = choice.splits;
  flow.origin = frame.origin(node);
  return add_op(std::move(flow), call, choice, frame, node)[0];
}

void FlowEmitter::count_once(const Frame& frame, const Node& node, const Choice& choice,
                             std::vector<int>& in) {
  uint32_t partial = 0;
  std::vector<int> axes;
  for (size_t i = 0; i < in.size(); ++i) {
    for (int axis : choice.in[i].layout.partial) {
      partial |= 1u << i;
      if (std::find(axes.begin(), axes.end(), axis) == axes.end()) axes.push_back(axis);
    }
  }
  if (partial == 0) return;
  // A cast is linear if it widens; only such casts get partial operands.
  const uint32_t set = node.op->converts ? 1u : linear_in(*node.op, partial);
  TESSERA_CHECK(set != 0, "[{}] got a partial operand in which it is not linear", node.op->name);
  for (size_t i = 0; i < in.size(); ++i) {
    if (!(set >> i & 1)) continue;
    FlowNode flow;
    flow.kind = FlowKind::first_only;
    for (int axis : axes) {
      const auto& own = choice.in[i].layout.partial;
      if (std::find(own.begin(), own.end(), axis) == own.end()) flow.axes.push_back(axis);
    }
    if (flow.axes.empty()) continue;
    const MemoKey key = MemoKey()
                            .add(std::string_view("first_only"))
                            .add(in[i])
                            .add(flow.axes)
                            .add(frame.recompute_group_of(node));
    auto [it, is_new] = seen_.emplace(key.text(), std::vector<int>{});
    if (is_new) {
      FlowValue once = value(in[i]);
      once.layout.partial.insert(once.layout.partial.end(), flow.axes.begin(), flow.axes.end());
      std::sort(once.layout.partial.begin(), once.layout.partial.end());
      flow.in = {in[i]};
      flow.origin = {once.name, frame.origin(node).source,
                     "added once to a sum that is still partial"};
      it->second = flow.out = {add_value(std::move(once))};
      add_node(std::move(flow));
    }
    in[i] = it->second[0];
  }
}

}  // namespace tessera
