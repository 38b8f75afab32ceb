// A composite is computed as one op if the device has a kernel for it and its `inside` dims are
// whole and unpadded. Otherwise, if its op has a blockwise form (Op::by_slices) and a dim it needs
// is split, that form replaces it; else its body does. Where a rule asks for equal work, the form
// that has it comes first. All are walked by the same rules in a frame of their own.
#include "lower/partition/composite_expander.h"

#include <algorithm>

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
  if (const auto body = balanced(call, in)) return add_form(*body);
  if (node.op->body && stays_whole(frame, node, call, in)) return false;
  if (const auto body = by_slices(call, in)) return add_form(*body);
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
/// an `inside` dim of another operand that has the axes of a dim of the first operand. Nothing if
/// there is no such dim, or if gathering it is cheaper.
std::optional<Body> CompositeExpander::by_slices(const OpCall& call, const std::vector<int>& in) {
  if (!call.op.by_slices) return std::nullopt;
  const IndexSpace& space = layouts_.space(call);
  Attrs attrs = call.attrs;
  if (attrs.has("row_bound")) {
    attrs.set("row_bound", attrs.get<double>("row_bound") * row_bounds_);
    attrs.set("row_parts", int64_t{row_parts_});
  }
  const OpCall bounded{call.op, call.in, call.out, attrs};
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
      const int64_t slices = slices_of(axes);
      if (!is_split_once(dim.name, slices) || (!like.empty() && !is_split_once(like, slices)))
        continue;
      if (attrs.has("row_bound") && i > 0) note_rows(call, first, axes, attrs);
      Body body = body_by_slices(bounded, dim.name, like, slices);
      if (!body.out.empty()) return body;
    }
  }
  return std::nullopt;
}

/// Sets "row_dims" and "row_slices" of the form: which dims of the first operand the ranks along
/// `axes` have slices of, in the order of the ranks, and how many. One dim may have more slices
/// than there are ranks along `axes`: then those with equal other coordinates have consecutive
/// ones. A dim "" is for ranks that have the same slices. Nothing if they are in another order, or
/// if no dim is in slices. "group_dims" and "group_slices": the dims that only other ranks have
/// slices of.
void CompositeExpander::note_rows(const OpCall& call, const std::vector<std::vector<int>>& first,
                                  const std::vector<int>& axes, Attrs& attrs) const {
  std::vector<std::string> dims;
  std::vector<int64_t> slices;
  const Shape& shape = call.in[0].shape;
  const auto add = [&](const std::string& dim, const std::vector<int>& own) {
    dims.push_back(dim);
    slices.push_back(slices_of(own));
  };
  size_t done = 0;
  for (size_t d = 0; d < first.size() && done == 0; ++d) {
    if (first[d].size() <= axes.size() ||
        !std::equal(axes.rbegin(), axes.rend(), first[d].rbegin()))
      continue;
    add(shape[static_cast<int>(d)].name, first[d]);
    done = axes.size();
  }
  while (done < axes.size()) {
    const auto has = [&](const std::vector<int>& own) {
      return std::find(own.begin(), own.end(), axes[done]) != own.end();
    };
    const auto dim = std::find_if(first.begin(), first.end(), has);
    if (dim == first.end()) {
      add("", {axes[done]});
      ++done;
      continue;
    }
    const auto next = axes.begin() + static_cast<std::ptrdiff_t>(done);
    if (dim->size() > axes.size() - done || !std::equal(dim->begin(), dim->end(), next)) return;
    add(shape[static_cast<int>(dim - first.begin())].name, *dim);
    done += dim->size();
  }
  bool any = false;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i].empty()) continue;
    any = true;
    if (!is_split_once(dims[i], slices[i])) return;
  }
  if (!any) return;
  attrs.set("row_dims", dims);
  attrs.set("row_slices", slices);
  dims.clear();
  slices.clear();
  for (size_t d = 0; d < first.size(); ++d) {
    const std::string& dim = shape[static_cast<int>(d)].name;
    const bool meets = std::find_first_of(first[d].begin(), first[d].end(), axes.begin(),
                                          axes.end()) != first[d].end();
    if (!first[d].empty() && !meets && is_split_once(dim, slices_of(first[d]))) add(dim, first[d]);
  }
  attrs.set("group_dims", dims);
  attrs.set("group_slices", slices);
}

/// The form with equal work, if a rule asks for it on a dim of the first operand. A dim of another
/// operand that the first one lacks and that has the same axes goes with it.
std::optional<Body> CompositeExpander::balanced(const OpCall& call, const std::vector<int>& in) {
  if (!call.op.body || !call.op.by_slices) return std::nullopt;
  const Shape& first = call.in[0].shape;
  const std::vector<std::vector<int>> split = emit_.value(in[0]).layout.dims;
  for (size_t d = 0; d < split.size(); ++d) {
    const std::string& dim = first[static_cast<int>(d)].name;
    const int64_t slices = slices_of(split[d]);
    if (split[d].empty() || !rule_layouts_.balances(dim, split[d]) || !is_split_once(dim, slices))
      continue;
    std::string like = dim;
    for (size_t i = 1; i < in.size(); ++i) {
      const auto& layout = emit_.value(in[i]).layout.dims;
      for (size_t e = 0; e < layout.size(); ++e) {
        const std::string& other = call.in[i].shape[static_cast<int>(e)].name;
        if (layout[e] == split[d] && !first.has(other) && is_split_once(other, slices))
          like = other;
      }
    }
    Body body = body_by_slices(call, dim, like, slices);
    if (!body.out.empty()) return body;
  }
  return std::nullopt;
}

int64_t CompositeExpander::slices_of(const std::vector<int>& axes) const {
  int64_t slices = 1;
  for (int axis : axes) slices *= rule_layouts_.mesh().axes()[axis].size;
  return slices;
}

/// False if further axes split the dim in other tensors.
bool CompositeExpander::is_split_once(const std::string& dim, int64_t slices) const {
  return rule_layouts_.padded(Dim(dim, slices)) == slices;
}

}  // namespace tessera
