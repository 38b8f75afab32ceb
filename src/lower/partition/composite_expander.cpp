// A composite is computed as one op if the device has a kernel for it and its `inside` dims are
// whole and unpadded. Otherwise, if its op has a blockwise form (Op::by_slices) and a dim it needs
// is split, that form replaces it; else its body does. Both are walked by the same rules in a frame
// of their own.
#include "lower/partition/composite_expander.h"

#include <algorithm>

namespace tessera {

bool CompositeExpander::expand(Frame& frame, const Node& node, const OpCall& call,
                               const std::vector<int>& in) {
  if (node.op->body && stays_whole(frame, node, call, in)) return false;
  if (const auto body = by_slices(call, in)) {
    // The nodes of the blockwise form prefer the split that the operand has now.
    const std::vector<std::string> split = split_dims(emit_.value(in[0]));
    std::vector<int> reduced;
    for (const int v : in) reduced.push_back(emit_.reduced(v, frame.origin(node)));
    add_body(frame, node, *body, reduced, split);
    return true;
  }
  if (!node.op->body) return false;
  add_body(frame, node, body_of(call), in, {});
  return true;
}

bool CompositeExpander::stays_whole(const Frame& frame, const Node& node, const OpCall& call,
                                    const std::vector<int>& in) {
  if (!node.op->host && !kernels_.count(node.op)) return false;
  const IndexSpace& space = layouts_.space(call);
  const auto is_whole_inside = [&](const std::vector<std::vector<int>>& dims, const Shape& shape,
                                   const TensorLayout& layout) {
    for (size_t d = 0; d < dims.size(); ++d) {
      const Dim& dim = shape[static_cast<int>(d)];
      if (space.factors[dims[d][0]].role != Role::inside) continue;
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
  std::vector<int> roots;
  for (const Tensor& t : body.out) roots.push_back(t.id());
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
  for (size_t i = 0; i < node.out.size(); ++i) {
    const int root = roots[i];
    const bool once = std::count(roots.begin(), roots.end(), root) == 1;
    if (once && inner.uses[static_cast<size_t>(root)].empty()) inner.returned[root] = node.out[i];
  }
  std::vector<TensorLayout> targets;
  for (size_t i = 0; i < node.out.size(); ++i) {
    targets.push_back(layouts_.consumer_layout(frame, node.out[i]));
    if (targets[i].dims != layouts_.rule_layout(frame, node.out[i]).dims)
      inner.result_layouts.emplace(body.out[i].id(), targets[i]);
  }
  walk_(inner);
  for (size_t i = 0; i < node.out.size(); ++i) {
    const int v = node.out[i];
    frame.env[v] =
        emit_.settle(frame, v, inner.env[body.out[i].id()], targets[i], frame.origin(node));
  }
}

/// The blockwise form over the first split dim that the op needs whole; for a composite, also over
/// an `inside` dim of another operand that has the axes of a dim of the first operand. Nothing if
/// there is no such dim, or if gathering it is cheaper.
std::optional<Body> CompositeExpander::by_slices(const OpCall& call, const std::vector<int>& in) {
  if (!call.op.by_slices) return std::nullopt;
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
      if (role == Role::inside && i > 0 && !call.in[0].shape.has(dim.name)) {
        const auto other = std::find(first.begin(), first.end(), axes);
        if (other != first.end())
          like = call.in[0].shape[static_cast<int>(other - first.begin())].name;
      } else if (role != Role::whole && (role != Role::inside || i > 0)) {
        continue;
      }
      int64_t slices = 1;
      for (int axis : axes) slices *= rule_layouts_.mesh().axes()[axis].size;
      // False if further axes split the dim in other tensors.
      const auto is_split_once = [&](const std::string& name) {
        return rule_layouts_.padded(Dim(name, slices)) == slices;
      };
      if (!is_split_once(dim.name) || (!like.empty() && !is_split_once(like))) continue;
      Body body = body_by_slices(call, dim.name, like, slices);
      if (!body.out.empty()) return body;
    }
  }
  return std::nullopt;
}

}  // namespace tessera
