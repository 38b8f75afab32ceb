// How an op with a body is taken: whole, where the device has a kernel for it and the layout leaves
// its inner dims whole; by slices, where it has such a form; else as its body.
#include <algorithm>

#include "lower/partitioner.h"

namespace tessera {

bool Partitioner::keep_whole(Frame& frame, const Node& node, const OpCall& call,
                             const std::vector<int>& in) {
  if (!node.op->host && !kernels_.count(node.op)) return false;
  const IndexSpace& space = chooser_.space(call);
  auto clear = [&](const std::vector<std::vector<int>>& dims, const Shape& shape,
                   const TensorLayout& layout) {
    for (size_t d = 0; d < dims.size(); ++d) {
      const Dim& dim = shape[static_cast<int>(d)];
      if (space.factors[dims[d][0]].role != Role::inside) continue;
      if (!layout.dims[d].empty() || homes_.has_padding(dim)) return false;
    }
    return true;
  };
  for (size_t i = 0; i < in.size(); ++i) {
    if (!clear(space.in[i], call.in[i].shape, flow_value(in[i]).layout)) return false;
  }
  for (size_t i = 0; i < node.out.size(); ++i) {
    if (!clear(space.out[i], call.out[i].shape, home(frame, node.out[i]))) return false;
  }
  return true;
}

void Partitioner::expand(Frame& frame, const Node& node, const Body& body,
                         const std::vector<int>& in, std::vector<std::string> prefer) {
  std::vector<int> roots;
  for (const Tensor& t : body.out) roots.push_back(t.id());
  prefer.insert(prefer.end(), frame.prefer.begin(), frame.prefer.end());
  for (int v : node.out) {
    const auto& own = frame.graph.value(v).prefer;
    prefer.insert(prefer.end(), own.begin(), own.end());
  }
  Frame inner =
      make_frame(body.graph, roots, frame.prefix + node.name + ".",
                 frame.source.empty() ? node.at.to_string() : frame.source, std::move(prefer));
  inner.again = frame.again_of(node);
  inner.tensor = frame.tensor.empty() ? frame.graph.value(node.out[0]).name : frame.tensor;
  for (size_t i = 0; i < in.size(); ++i) inner.env[body.in[i].id()] = in[i];
  std::vector<TensorLayout> targets;
  for (size_t i = 0; i < node.out.size(); ++i) {
    targets.push_back(wanted_home(frame, node.out[i]));
    if (targets[i].dims != home(frame, node.out[i]).dims)
      inner.wanted.emplace(body.out[i].id(), targets[i]);
  }
  walk(inner);
  for (size_t i = 0; i < node.out.size(); ++i) {
    const int v = node.out[i];
    frame.env[v] = settle(frame, v, inner.env[body.out[i].id()], targets[i], origin(frame, node));
  }
}

std::optional<Body> Partitioner::by_slices(const OpCall& call, const std::vector<int>& in) {
  if (!call.op.by_slices) return std::nullopt;
  const IndexSpace& space = chooser_.space(call);
  const std::vector<std::vector<int>> first = flow_value(in[0]).layout.dims;
  for (size_t i = in.size(); i-- > 0;) {  // two dims that meet, before one
    const TensorLayout layout = flow_value(in[i]).layout;
    for (size_t d = 0; d < layout.dims.size(); ++d) {
      const Dim& dim = call.in[i].shape[static_cast<int>(d)];
      const std::vector<int>& axes = layout.dims[d];
      if (axes.empty() || dim.is_bounded || space.in[i][d].size() != 1) continue;
      const Role role = space.factors[space.in[i][d][0]].role;
      std::string like;
      if (role == Role::inside && i > 0 && !call.in[0].shape.has(dim.name)) {
        const auto other = std::find(first.begin(), first.end(), axes);
        if (other == first.end()) continue;
        const Dim& meets = call.in[0].shape[static_cast<int>(other - first.begin())];
        if (meets.is_bounded) continue;
        like = meets.name;
      } else if (role != Role::whole && (role != Role::inside || i > 0)) {
        continue;
      }
      int64_t slices = 1;
      for (int axis : axes) slices *= homes_.mesh().axes()[axis].size;
      const auto fits = [&](const std::string& name) {
        return homes_.padded(Dim(name, slices)) == slices;  // else more axes split it elsewhere
      };
      if (!fits(dim.name) || (!like.empty() && !fits(like))) continue;
      Body body = body_by_slices(call, dim.name, like, slices);
      if (!body.out.empty()) return body;
    }
  }
  return std::nullopt;
}

}  // namespace tessera
