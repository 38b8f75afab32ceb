// Every value has a rule layout. Two kinds of values get another one.
//
// A partial value is not reduced while its only consumer is linear in it (may_stay_partial). The
// consumer of what a composite's body returns is the composite's. With
// several consumers it is reduced once for all of them. If all of them read only slices, it is
// reduced to those slices: a reduce_scatter instead of an all_reduce (reduced_layout). Example:
// with ZeRO-1 the gradient of a replicated parameter is reduce-scattered because the update of the
// split optimizer state (@state) is its only consumer; no rule asks for that.
//
// The result of a pointwise op is computed in its consumers' layout if that is slices of the rule
// layout: the op has less to compute, and nothing is sent.
#include "lower/partition/layout_chooser.h"

#include <algorithm>

#include "base/fail.h"
#include "ir/body.h"
#include "ir/source_ops.h"
#include "lower/layout/partial_operands.h"

namespace tessera {

void keep_partial(TensorLayout& target, const TensorLayout& have) {
  target.partial = have.partial;
  target.combiner = have.combiner;
  for (auto& axes : target.dims) {
    std::erase_if(axes, [&](int a) {
      return std::find(have.partial.begin(), have.partial.end(), a) != have.partial.end();
    });
  }
}

TensorLayout LayoutChooser::rule_layout(const Frame& frame, int value) const {
  if (auto it = frame.result_layouts.find(value); it != frame.result_layouts.end())
    return it->second;
  if (const int stack = frame.only_result(value, Loop::Result::stack); stack >= 0) {
    TensorLayout layout = rule_layout(frame, stack);
    layout.dims.erase(layout.dims.begin());
    return layout;
  }
  const Value& v = frame.graph.value(value);
  // What each iteration reduces and then widens goes right into the slices of the sum.
  const bool is_widened = frame.only_result(value, Loop::Result::sum) < 0 ||
                          (v.node >= 0 && widens(frame.graph, frame.graph.producer(value)));
  if (const int sum = is_widened ? sum_like(frame, value) : -1; sum >= 0)
    return rule_layout(frame, sum);
  std::vector<std::string> prefer = v.prefer;
  prefer.insert(prefer.end(), frame.prefer.begin(), frame.prefer.end());
  try {
    const std::string name = frame.prefix + v.name;
    TensorLayout layout = rule_layouts_.of(v.shape, name, v.purpose, prefer);
    if (v.purpose != Purpose::grads || frame.escapes[value]) return layout;
    // A gradient without a storage rule of its own goes where the update needs it: to the state's
    // slices.
    const bool is_stored = !(layout == rule_layouts_.of(v.shape, name, Purpose::none, prefer));
    return is_stored ? layout : rule_layouts_.of(v.shape, name, Purpose::state, prefer);
  } catch (const Contradiction& e) {
    const Origin from = frame.origin(frame.graph.producer(value));
    const std::string inside = frame.tensor.empty() ? "" : ", inside '" + frame.tensor + "'";
    throw Contradiction(fmt::format("{} ({}{})", e.what(), from.source, inside));
  }
}

TensorLayout LayoutChooser::loop_result_layout(const Frame& frame, int result) const {
  const int sum = sum_like(frame, result);
  return rule_layout(frame, sum >= 0 ? sum : result);
}

/// With reduce_each_microbatch: the sum over iterations of a value, if it has the value's shape.
int LayoutChooser::sum_like(const Frame& frame, int value) const {
  const int sum = options_.reduce_each_microbatch ? frame.summed_later(value) : -1;
  return sum >= 0 && frame.graph.value(sum).shape == frame.graph.value(value).shape ? sum : -1;
}

TensorLayout LayoutChooser::settled_layout(const Frame& frame, int value, int flow,
                                           TensorLayout target) {
  const FlowValue& have = build_.value(flow);
  if (have.layout.partial.empty()) return target;
  if (!may_stay_partial(frame, value, have.layout))
    return reduced_layout(frame, value, have, target);
  keep_partial(target, have.layout);
  return target;
}

bool LayoutChooser::may_stay_partial(const Frame& frame, int value,
                                     const TensorLayout& have) const {
  if (const auto result = frame.returned.find(value); result != frame.returned.end())
    return may_stay_partial(*frame.outer, result->second, have);
  if (frame.escapes[value] || have.combiner != Combiner::sum || frame.uses[value].empty() ||
      is_strict())
    return false;
  if (frame.graph.value(value).purpose == Purpose::grads) return false;
  const int consumer = frame.uses[value][0];
  for (int n : frame.uses[value]) {
    if (n != consumer) return false;
  }
  const Node& node = frame.graph.nodes()[consumer];
  if (node.op == &kLoop) return true;  // the loop moves its results itself, or sums them unreduced
  // Summed over iterations in the wider dtype, then reduced once.
  if (widens(frame.graph, node) && node.loop == frame.loop &&
      (options_.wide_grad_reduce || is_reduced_as_sum(frame, node.out[0])))
    return true;
  // What a composite rounds to 16 bits and is then summed so: each rank rounds its part, as a
  // matmul in 16 bits does.
  if (narrows(frame.graph, node) && size_of(frame.graph.value(node.out[0]).dtype) == 2 &&
      node.loop == frame.loop && is_reduced_as_sum(frame, node.out[0]))
    return true;
  if (node.loop != frame.loop) return false;  // otherwise every iteration would reduce it
  return takes_partial(frame.graph, node, value, have, [&](int other) {
    return frame.env[other] >= 0 ? build_.value(frame.env[other]).layout
                                 : rule_layout(frame, other);
  });
}

/// For each operand: the number of ops like this one that read it and can share its move.
std::vector<int> LayoutChooser::readers_like(const Frame& frame, const Node& node) {
  std::vector<int> counts;
  if (node.op->pointwise) return std::vector<int>(node.in.size(), 1);
  for (const int v : node.in) {
    const Shape& shape = frame.graph.value(v).shape;
    const auto result = [&](const Node& n) -> const Shape& {
      return frame.graph.value(n.out[0]).shape;
    };
    // Forward and backward ops differ in which dims of the operand their results keep. This also
    // separates the readers of a recomputed copy.
    const auto is_like = [&](int n) {
      const Node& other = frame.graph.nodes()[n];
      return other.op == node.op && std::all_of(shape.begin(), shape.end(), [&](const Dim& d) {
               return result(other).has(d.name) == result(node).has(d.name);
             });
    };
    const auto& uses = frame.uses[v];
    counts.push_back(static_cast<int>(std::count_if(uses.begin(), uses.end(), is_like)));
  }
  return counts;
}

/// True if a dim that is `inside` the composite is split.
bool LayoutChooser::splits_inside(const OpCall& call, const std::vector<TensorLayout>& layouts) {
  const IndexSpace& space = splits_.space(call);
  for (size_t i = 0; i < layouts.size(); ++i) {
    for (size_t d = 0; d < layouts[i].dims.size(); ++d) {
      const Role role = space.factors[space.in[i][d][0]].role;
      if (is_inside(role) && !layouts[i].dims[d].empty()) return true;
    }
  }
  return false;
}

/// The layout in which a consumer reads `value` if its layout is `at`; nothing if not known yet.
std::optional<LayoutChooser::ConsumerLayout> LayoutChooser::read_by(const Frame& frame,
                                                                    const Node& node, int value,
                                                                    const TensorLayout& at) {
  if (node.op == &kLoop || node.loop != frame.loop || may_be_sharded(*node.op)) return std::nullopt;
  if (node.op->body && !rule_layouts_.depends_on_names()) return std::nullopt;
  const CallTypes types = call_types(frame.graph, node);
  const OpCall call{*node.op, types.in, types.out, node.attrs};
  std::vector<TensorLayout> layouts, result_layouts;
  for (int v : node.in) {
    const bool computed = frame.env[v] >= 0 && v != value;
    layouts.push_back(v == value ? at
                      : computed ? build_.value(frame.env[v]).layout
                                 : rule_layout(frame, v));
    layouts.back().partial.clear();
  }
  if (node.op->body && splits_inside(call, layouts)) return std::nullopt;  // its body decides
  for (int v : node.out) result_layouts.push_back(result_layout(frame, node, v));
  const Choice& choice = splits_.choice(call, layouts, result_layouts, readers_like(frame, node));
  std::optional<ConsumerLayout> read;
  for (size_t i = 0; i < node.in.size(); ++i) {
    if (node.in[i] != value) continue;
    const OperandPlacement& place = choice.in[i];
    if (!place.intervals.empty() || (read && read->layout.dims != place.layout.dims))
      return std::nullopt;
    read = {place.layout, choice.cost};
  }
  return read;
}

/// The one layout in which all consumers read a value with rule layout `by_rules`. If some
/// consumers want another layout, all must read it in that one. `bytes`: what they then send in
/// addition.
std::optional<LayoutChooser::ConsumerLayout> LayoutChooser::read_by_all(
    const Frame& frame, int value, const TensorLayout& by_rules) {
  if (frame.escapes[value] || frame.uses[value].empty()) return std::nullopt;
  std::optional<TensorLayout> other;  // the layout that some consumers want
  int64_t from_rules = 0;
  for (int n : frame.uses[value]) {
    const auto read = read_by(frame, frame.graph.nodes()[n], value, by_rules);
    if (!read) return std::nullopt;
    from_rules += read->bytes;
    if (read->layout.dims == by_rules.dims) continue;
    if (other && other->dims != read->layout.dims) return std::nullopt;
    other = read->layout;
  }
  if (!other) return ConsumerLayout{by_rules, 0};
  ConsumerLayout all{*other, -from_rules};
  for (int n : frame.uses[value]) {
    const auto read = read_by(frame, frame.graph.nodes()[n], value, *other);
    if (!read || read->layout.dims != other->dims) return std::nullopt;
    all.bytes += read->bytes;
  }
  return all;
}

/// The layout to which a partial value is reduced: the rule layout, or slices of it that all
/// consumers read.
TensorLayout LayoutChooser::reduced_layout(const Frame& frame, int value, const FlowValue& have,
                                           const TensorLayout& by_rules) {
  const std::optional<ConsumerLayout> all = read_by_all(frame, value, by_rules);
  if (!all) return by_rules;
  Resharder& resharder = splits_.resharder();
  const auto bytes = [&](const TensorLayout& from, const TensorLayout& to) {
    return resharder.path(have.shape, have.dtype, from, to).bytes;
  };
  const bool slices = bytes(by_rules, all->layout) == 0;
  const bool less = bytes(have.layout, all->layout) + all->bytes < bytes(have.layout, by_rules);
  return slices && less ? all->layout : by_rules;
}

const TensorLayout& LayoutChooser::consumer_layout(const Frame& frame, int value) {
  auto known = frame.consumer_layouts.find(value);
  if (known == frame.consumer_layouts.end())
    known = frame.consumer_layouts.emplace(value, find_consumer_layout(frame, value)).first;
  return known->second;
}

TensorLayout LayoutChooser::find_consumer_layout(const Frame& frame, int value) {
  const TensorLayout at = rule_layout(frame, value);
  const std::optional<ConsumerLayout> all = read_by_all(frame, value, at);
  if (!all || all->layout.dims == at.dims || all->bytes > 0) return at;
  const Value& v = frame.graph.value(value);
  const bool slices = splits_.resharder().path(v.shape, v.dtype, at, all->layout).bytes == 0;
  return slices ? all->layout : at;
}

TensorLayout LayoutChooser::result_layout(const Frame& frame, const Node& node, int value) {
  const bool moves =
      node.op->pointwise && (node.in.size() == 1 || rule_layouts_.depends_on_names());
  return moves ? consumer_layout(frame, value) : rule_layout(frame, value);
}

const Choice& LayoutChooser::choose(const Frame& frame, const Node& node, const OpCall& call,
                                    const std::vector<TensorLayout>& layouts,
                                    std::vector<TensorLayout>& result_layouts) {
  const std::vector<int> readers = readers_like(frame, node);
  const Choice& choice = splits_.choice(call, layouts, result_layouts, readers);
  bool is_same = true;
  for (size_t i = 0; i < choice.out.size(); ++i) {
    const int v = node.out[i];
    const TensorLayout& out = choice.out[i];
    if (out.partial.empty() || may_stay_partial(frame, v, out)) continue;
    TensorLayout target = reduced_layout(frame, v, {call.out[i].shape, call.out[i].dtype, out, ""},
                                         result_layouts[i]);
    if (target == result_layouts[i]) continue;
    result_layouts[i] = std::move(target);
    is_same = false;
  }
  return is_same ? choice : splits_.choice(call, layouts, result_layouts, readers);
}

}  // namespace tessera
