// A value whose terms are to be combined may go straight where all that reads it takes only slices:
// a reduce_scatter instead of an all_reduce of which each rank then uses a part. Rules do not say
// so of the value itself; its consumers choose it, as the gradient of a parameter that is
// replicated while its optimizer state is not (@state).
#include "ir/source_ops.h"
#include "lower/partitioner.h"
#include "tessera/op.h"

namespace tessera {

std::optional<TensorLayout> Partitioner::wanted_by(const Frame& frame, const Node& node, int value,
                                                   const TensorLayout& at) {
  if (node.op == &kLoop || node.loop != frame.loop || node.op->body || node.op->by_slices)
    return std::nullopt;
  const CallTypes types = call_types(frame.graph, node);
  const OpCall call{*node.op, types.in, types.out, node.attrs};
  std::vector<TensorLayout> layouts, homes;
  for (int v : node.in) {
    const bool made = frame.env[v] >= 0 && v != value;
    layouts.push_back(v == value ? at : made ? flow_value(frame.env[v]).layout : home(frame, v));
    layouts.back().partial.clear();
  }
  for (int v : node.out) homes.push_back(home_of_result(frame, node, v));
  const Choice& choice = chooser_.choice(call, layouts, homes);
  std::optional<TensorLayout> wanted;
  for (size_t i = 0; i < node.in.size(); ++i) {
    if (node.in[i] != value) continue;
    const Placement& place = choice.in[i];
    if (!place.intervals.empty() || (wanted && wanted->dims != place.layout.dims))
      return std::nullopt;
    wanted = place.layout;
  }
  return wanted;
}

const Choice& Partitioner::aim(const Frame& frame, const Node& node, const OpCall& call,
                               const std::vector<TensorLayout>& layouts,
                               std::vector<TensorLayout>& homes) {
  const Choice& choice = chooser_.choice(call, layouts, homes);
  bool is_same = true;
  for (size_t i = 0; i < choice.out.size(); ++i) {
    const int v = node.out[i];
    const TensorLayout& out = choice.out[i];
    if (out.partial.empty() || may_stay_partial(frame, v, out)) continue;
    TensorLayout target =
        combined_for(frame, v, {call.out[i].shape, call.out[i].dtype, out, ""}, homes[i]);
    if (target == homes[i]) continue;
    homes[i] = std::move(target);
    is_same = false;
  }
  return is_same ? choice : chooser_.choice(call, layouts, homes);
}

std::optional<TensorLayout> Partitioner::wanted_by_all(const Frame& frame, int value,
                                                       const TensorLayout& home) {
  if (frame.escapes[value] || frame.uses[value].empty()) return std::nullopt;
  std::optional<TensorLayout> all;
  for (int n : frame.uses[value]) {
    const auto wanted = wanted_by(frame, frame.graph.nodes()[n], value, home);
    if (!wanted || (all && all->dims != wanted->dims)) return std::nullopt;
    all = wanted;
  }
  return all;
}

TensorLayout Partitioner::combined_for(const Frame& frame, int value, const FlowValue& have,
                                       const TensorLayout& home) {
  const std::optional<TensorLayout> all = wanted_by_all(frame, value, home);
  if (!all) return home;
  Resharder& resharder = chooser_.resharder();
  const auto bytes = [&](const TensorLayout& from, const TensorLayout& to) {
    return resharder.path(have.shape, have.dtype, from, to).bytes;
  };
  const bool slices = bytes(home, *all) == 0;
  return slices && bytes(have.layout, *all) < bytes(have.layout, home) ? *all : home;
}

TensorLayout Partitioner::wanted_home(const Frame& frame, int value) {
  const TensorLayout at = home(frame, value);
  const std::optional<TensorLayout> all = wanted_by_all(frame, value, at);
  if (!all || all->dims == at.dims) return at;
  const Value& v = frame.graph.value(value);
  return chooser_.resharder().path(v.shape, v.dtype, at, *all).bytes == 0 ? *all : at;
}

TensorLayout Partitioner::home_of_result(const Frame& frame, const Node& node, int value) {
  const bool is_unary = node.op->pointwise && node.in.size() == 1;
  return is_unary ? wanted_home(frame, value) : home(frame, value);
}

}  // namespace tessera
