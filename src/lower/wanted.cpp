// A value whose terms are to be combined may go straight where all that reads it takes only slices:
// a reduce_scatter instead of an all_reduce of which each rank then uses a part. Rules do not say
// so of the value itself; its consumers choose it, as the gradient of a parameter that is
// replicated while its optimizer state is not (@state).
#include <algorithm>

#include "ir/source_ops.h"
#include "lower/partitioner.h"
#include "tessera/op.h"

namespace tessera {

std::vector<int> Partitioner::readers(const Frame& frame, const Node& node) const {
  std::vector<int> counts;
  if (node.op->pointwise) return std::vector<int>(node.in.size(), 1);
  for (const int v : node.in) {
    const Shape& shape = frame.graph.value(v).shape;
    const auto result = [&](const Node& n) -> const Shape& {
      return frame.graph.value(n.out[0]).shape;
    };
    // Forward and backward differ in what they keep of its dims, also where one of them reads a
    // copy that was made again.
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

bool Partitioner::cuts_inside(const OpCall& call, const std::vector<TensorLayout>& layouts) {
  const IndexSpace& space = chooser_.space(call);
  for (size_t i = 0; i < layouts.size(); ++i) {
    for (size_t d = 0; d < layouts[i].dims.size(); ++d) {
      const Role role = space.factors[space.in[i][d][0]].role;
      if (role == Role::inside && !layouts[i].dims[d].empty()) return true;
    }
  }
  return false;
}

std::optional<Partitioner::Wanted> Partitioner::wanted_by(const Frame& frame, const Node& node,
                                                          int value, const TensorLayout& at) {
  if (node.op == &kLoop || node.loop != frame.loop || node.op->by_slices) return std::nullopt;
  if (node.op->body && !homes_.depends_on_names()) return std::nullopt;
  const CallTypes types = call_types(frame.graph, node);
  const OpCall call{*node.op, types.in, types.out, node.attrs};
  std::vector<TensorLayout> layouts, homes;
  for (int v : node.in) {
    const bool made = frame.env[v] >= 0 && v != value;
    layouts.push_back(v == value ? at : made ? flow_value(frame.env[v]).layout : home(frame, v));
    layouts.back().partial.clear();
  }
  if (node.op->body && cuts_inside(call, layouts)) return std::nullopt;  // its body would be moved
  for (int v : node.out) homes.push_back(home_of_result(frame, node, v));
  const Choice& choice = chooser_.choice(call, layouts, homes, readers(frame, node));
  std::optional<Wanted> wanted;
  for (size_t i = 0; i < node.in.size(); ++i) {
    if (node.in[i] != value) continue;
    const Placement& place = choice.in[i];
    if (!place.intervals.empty() || (wanted && wanted->layout.dims != place.layout.dims))
      return std::nullopt;
    wanted = {place.layout, choice.cost};
  }
  return wanted;
}

const Choice& Partitioner::aim(const Frame& frame, const Node& node, const OpCall& call,
                               const std::vector<TensorLayout>& layouts,
                               std::vector<TensorLayout>& homes) {
  const std::vector<int> shared = readers(frame, node);
  const Choice& choice = chooser_.choice(call, layouts, homes, shared);
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
  return is_same ? choice : chooser_.choice(call, layouts, homes, shared);
}

std::optional<Partitioner::Wanted> Partitioner::wanted_by_all(const Frame& frame, int value,
                                                              const TensorLayout& home) {
  if (frame.escapes[value] || frame.uses[value].empty()) return std::nullopt;
  std::optional<TensorLayout> other;  // that somebody wants
  int64_t at_home = 0;
  for (int n : frame.uses[value]) {
    const auto wanted = wanted_by(frame, frame.graph.nodes()[n], value, home);
    if (!wanted) return std::nullopt;
    at_home += wanted->cost;
    if (wanted->layout.dims == home.dims) continue;
    if (other && other->dims != wanted->layout.dims) return std::nullopt;
    other = wanted->layout;
  }
  if (!other) return Wanted{home, 0};
  Wanted all{*other, -at_home};
  for (int n : frame.uses[value]) {
    const auto wanted = wanted_by(frame, frame.graph.nodes()[n], value, *other);
    if (!wanted || wanted->layout.dims != other->dims) return std::nullopt;
    all.cost += wanted->cost;
  }
  return all;
}

TensorLayout Partitioner::combined_for(const Frame& frame, int value, const FlowValue& have,
                                       const TensorLayout& home) {
  const std::optional<Wanted> all = wanted_by_all(frame, value, home);
  if (!all) return home;
  Resharder& resharder = chooser_.resharder();
  const auto bytes = [&](const TensorLayout& from, const TensorLayout& to) {
    return resharder.path(have.shape, have.dtype, from, to).bytes;
  };
  const bool slices = bytes(home, all->layout) == 0;
  const bool less = bytes(have.layout, all->layout) + all->cost < bytes(have.layout, home);
  return slices && less ? all->layout : home;
}

const TensorLayout& Partitioner::wanted_home(const Frame& frame, int value) {
  auto known = frame.wanted_homes.find(value);
  if (known == frame.wanted_homes.end())
    known = frame.wanted_homes.emplace(value, find_wanted_home(frame, value)).first;
  return known->second;
}

TensorLayout Partitioner::find_wanted_home(const Frame& frame, int value) {
  const TensorLayout at = home(frame, value);
  const std::optional<Wanted> all = wanted_by_all(frame, value, at);
  if (!all || all->layout.dims == at.dims || all->cost > 0) return at;
  const Value& v = frame.graph.value(value);
  return chooser_.resharder().path(v.shape, v.dtype, at, all->layout).bytes == 0 ? all->layout : at;
}

TensorLayout Partitioner::home_of_result(const Frame& frame, const Node& node, int value) {
  const bool moves = node.op->pointwise && (node.in.size() == 1 || homes_.depends_on_names());
  return moves ? wanted_home(frame, value) : home(frame, value);
}

}  // namespace tessera
