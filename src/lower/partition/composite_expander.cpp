// A composite is computed as one op if the device has a kernel for it and its `inside` dims are
// whole and unpadded. Otherwise, if its op has a blockwise form (Op::sharded_body) and a dim it
// needs is split, that form replaces it; else its body does. Where a rule asks for equal work, the
// form that has it comes first. All are walked by the same rules in a frame of their own.
#include "lower/partition/composite_expander.h"

#include <algorithm>

#include "lower/partition/routed_form.h"

namespace tessera {

bool CompositeExpander::expand(Frame& frame, const Node& node, const OpCall& call,
                               const std::vector<int>& in) {
  // The nodes of a form by slices prefer the split that the operand has now.
  const auto add_form = [&](const Body& body) {
    const std::vector<std::string> split = split_dims(emit_.value(in[0]));
    std::vector<int> reduced;
    for (const int v : in) reduced.push_back(emit_.reduced(v, frame.origin(node)));
    add_body(frame, node, body, reduced, split);
    return true;
  };
  if (!is_strict()) {
    if (const auto body = balanced(call, in)) return add_form(*body);
  }
  if (node.op->body && stays_whole(frame, node, call, in)) return false;
  if (!is_strict()) {
    if (const auto body = sharded(call, in)) return add_form(*body);
  }
  if (!node.op->body && !(is_strict() && node.op->ordered_body)) return false;
  const Body body = node.op->body ? body_of(call) : ordered_body_of(call);
  if (body.out.empty()) return false;
  // Where a form would have served two dims on one axis, the body keeps that of the first operand.
  std::vector<std::string> prefer;
  if (is_strict() && may_be_sharded(*node.op)) prefer = split_dims(emit_.value(in[0]));
  add_body(frame, node, body, in, std::move(prefer));
  return true;
}

bool CompositeExpander::stays_whole(const Frame& frame, const Node& node, const OpCall& call,
                                    const std::vector<int>& in) {
  if (!node.op->host && !kernels_.count(node.op)) return false;
  if (is_strict() && node.op->in_order && !node.op->in_order(call, strict_chunks_)) return false;
  const IndexSpace& space = layouts_.space(call);
  const auto is_whole_inside = [&](const std::vector<std::vector<int>>& dims, const Shape& shape,
                                   const TensorLayout& layout) {
    for (size_t d = 0; d < dims.size(); ++d) {
      const Dim& dim = shape[static_cast<int>(d)];
      if (!is_inside(space.factors[dims[d][0]].role)) continue;
      if (!layout.dims[d].empty() || rule_layouts_.has_padding(dim)) return false;
    }
    return true;
  };
  for (size_t i = 0; i < in.size(); ++i) {
    if (!is_whole_inside(space.in[i], call.in[i].shape, emit_.value(in[i]).layout)) return false;
  }
  for (size_t i = 0; i < node.out.size(); ++i) {
    if (!is_whole_inside(space.out[i], call.out[i].shape, layouts_.rule_layout(frame, node.out[i])))
      return false;
  }
  return true;
}

void CompositeExpander::add_body(Frame& frame, const Node& node, const Body& body,
                                 const std::vector<int>& in, std::vector<std::string> prefer) {
  std::vector<size_t> made;  // results that nobody reads are not
  std::vector<int> roots;
  for (size_t i = 0; i < node.out.size(); ++i) {
    if (!frame.read[node.out[i]]) continue;
    made.push_back(i);
    roots.push_back(body.out[i].id());
  }
  prefer.insert(prefer.end(), frame.prefer.begin(), frame.prefer.end());
  for (int v : node.out) {
    const auto& own = frame.graph.value(v).prefer;
    prefer.insert(prefer.end(), own.begin(), own.end());
  }
  Frame inner(body.graph, roots, frame.prefix + node.name + ".", frame.origin(node).source,
              std::move(prefer));
  inner.recompute_group = frame.recompute_group_of(node);
  inner.tensor = frame.tensor.empty() ? frame.graph.value(node.out[0]).name : frame.tensor;
  for (size_t i = 0; i < in.size(); ++i) inner.env[body.in[i].id()] = in[i];
  inner.outer = &frame;
  std::vector<TensorLayout> targets(node.out.size());
  for (const size_t i : made) {
    const int root = body.out[i].id();
    const bool once = std::count(roots.begin(), roots.end(), root) == 1;
    if (once && inner.uses[static_cast<size_t>(root)].empty()) inner.returned[root] = node.out[i];
    targets[i] = layouts_.consumer_layout(frame, node.out[i]);
    if (targets[i].dims != layouts_.rule_layout(frame, node.out[i]).dims)
      inner.result_layouts.emplace(body.out[i].id(), targets[i]);
  }
  walk_(inner);
  for (const size_t i : made) {
    const int v = node.out[i];
    frame.env[v] =
        emit_.settle(frame, v, inner.env[body.out[i].id()], targets[i], frame.origin(node));
  }
}

/// The blockwise form over the first split dim that the op needs whole; for a composite, also over
/// an `inside` dim of another operand that has the axes of a dim of the first operand, or over a
/// `routed` one. Nothing if there is no such dim, or if gathering it is cheaper.
std::optional<Body> CompositeExpander::sharded(const OpCall& call, const std::vector<int>& in) {
  if (!may_be_sharded(call.op)) return std::nullopt;
  const IndexSpace& space = layouts_.space(call);
  const std::vector<std::vector<int>> first = emit_.value(in[0]).layout.dims;
  for (size_t i = in.size(); i-- > 0;) {  // other operands first: there two dims may meet
    const TensorLayout layout = emit_.value(in[i]).layout;
    for (size_t d = 0; d < layout.dims.size(); ++d) {
      const Dim& dim = call.in[i].shape[static_cast<int>(d)];
      const std::vector<int>& axes = layout.dims[d];
      if (axes.empty() || space.in[i][d].size() != 1) continue;
      const Role role = space.factors[space.in[i][d][0]].role;
      std::string like;
      if (is_inside(role) && i > 0 && !call.in[0].shape.has(dim.name)) {
        const auto other = std::find(first.begin(), first.end(), axes);
        if (other != first.end())
          like = call.in[0].shape[static_cast<int>(other - first.begin())].name;
      } else if (role != Role::whole && (!is_inside(role) || i > 0)) {
        continue;
      }
      const int64_t slices = rule_layouts_.slices_of(axes);
      if (!rule_layouts_.is_split_once(dim.name, slices) ||
          (!like.empty() && !rule_layouts_.is_split_once(like, slices)))
        continue;
      if (role == Role::routed)
        return routed_form(call, slices,
                           token_slices(call, first, axes, rule_layouts_, variant_.chunks()),
                           variant_);
      if (!call.op.sharded_body) continue;
      Body body = sharded_body_of(call, dim.name, like, slices);
      if (!body.out.empty()) return body;
    }
  }
  return std::nullopt;
}

/// The form with equal work, if a rule asks for it on a dim of the first operand. A dim of another
/// operand that the first one lacks and that has the same axes goes with it.
std::optional<Body> CompositeExpander::balanced(const OpCall& call, const std::vector<int>& in) {
  if (!call.op.body || !call.op.sharded_body) return std::nullopt;
  const Shape& first = call.in[0].shape;
  const std::vector<std::vector<int>> split = emit_.value(in[0]).layout.dims;
  for (size_t d = 0; d < split.size(); ++d) {
    const std::string& dim = first[static_cast<int>(d)].name;
    const int64_t slices = rule_layouts_.slices_of(split[d]);
    if (split[d].empty() || !rule_layouts_.balances(dim, split[d]) ||
        !rule_layouts_.is_split_once(dim, slices))
      continue;
    std::string like = dim;
    for (size_t i = 1; i < in.size(); ++i) {
      const auto& layout = emit_.value(in[i]).layout.dims;
      for (size_t e = 0; e < layout.size(); ++e) {
        const std::string& other = call.in[i].shape[static_cast<int>(e)].name;
        if (layout[e] == split[d] && !first.has(other) &&
            rule_layouts_.is_split_once(other, slices))
          like = other;
      }
    }
    Body body = sharded_body_of(call, dim, like, slices);
    if (!body.out.empty()) return body;
  }
  return std::nullopt;
}

}  // namespace tessera
