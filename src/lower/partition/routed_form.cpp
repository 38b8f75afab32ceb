// Dispatching sends choices / ranks of the bytes that gathering tokens does. The tokens of a rank
// may be cut into chunks. Nodes are in the order in which they shall run: the rows of all chunks,
// then the body chunk by chunk, then the sums. So one chunk is sent while another is computed; in
// the gradient, whose nodes are in reverse order, too.
#include "lower/partition/routed_form.h"

#include "lower/partition/token_dispatch.h"
#include "ops/sliced.h"

namespace tessera {

namespace {

using Tensors = std::vector<Tensor>;

/// The forward op of a call with routed rows.
struct Routed {
  const Op& op;
  const Attrs& attrs;
  Routing routing;
  Tensors in;  ///< those of the groups in slices
  Dim groups;  ///< all
  Dim inner;   ///< of a slice
  int64_t slices;

  Graph& graph() const { return in[0].graph(); }
  bool is_of_groups(size_t i) const { return i != routing.index && in[i].shape().has(groups.name); }
  Tensor result(const Tensors& rows, const Shape& out, double used) const {
    return op.body_of_rows(rows, attrs, inner.name, out, used)[0];
  }
};

Routed routed(const Op& op, const Attrs& attrs, Tensors in, int64_t slices) {
  Routed all{op, attrs, op.routing(attrs), std::move(in), {"", 0}, {"", 0}, slices};
  for (size_t i = 0; i < all.in.size(); ++i) {
    Tensor& x = all.in[i];
    if (i == all.routing.index || !x.shape().has(all.routing.groups)) continue;
    all.groups = x.dim(all.routing.groups);
    const Sliced sliced(x, all.routing.groups, slices, 0);
    x = sliced.x;
    all.inner = sliced.inner;
  }
  return all;
}

/// The operands where each slice of the groups computes its rows of all tokens. What is made of
/// them prefers the slices as the indices do.
Tensors gathered(const Routed& all) {
  Graph& g = all.graph();
  Tensors in = all.in;
  Tensor& indices = in[all.routing.index];
  const Shape choices = choices_of(in[0].shape(), indices.shape());
  const Dim slice(all.groups.name, all.slices);
  const Shape dims = Shape{slice}.united(indices.shape());
  const auto number = [&](int64_t value) {
    return constant(g, static_cast<double>(value), indices.dtype());
  };
  const Tensor first =
      (iota(g, slice, indices.dtype()) * number(all.inner.size)).prefer(slice.name);
  const PreferScope prefer(g, first);
  indices = broadcast(indices, dims) - broadcast(first, dims);
  for (size_t i = 0; i < in.size(); ++i) {
    if (i == all.routing.index || all.is_of_groups(i) || in[i].shape().has(choices[0].name))
      continue;
    // So the gradients of several operands for tokens are added before ranks add theirs.
    in[i] = broadcast(in[i], Shape{slice}.united(in[i].shape()));
  }
  return in;
}

/// A chunk of the tokens, and the operands at the ranks of their groups.
struct Dispatched {
  TokenDispatch way;
  Tensors in;
};

Dispatched dispatched(const Routed& all, const TokenSlices& tokens, double capacity,
                      DispatchChunk chunk) {
  std::optional<Scope> name;
  if (chunk.count > 1)
    name.emplace(all.graph(), fmt::format("part{}of{}", chunk.number + 1, chunk.count));
  const Tensor& indices = all.in[all.routing.index];
  const std::string choices = choices_of(all.in[0].shape(), indices.shape())[0].name;
  Dispatched rows{TokenDispatch(indices, choices, all.groups, tokens, all.slices, capacity, chunk),
                  all.in};
  for (size_t i = 0; i < all.in.size(); ++i) {
    if (i == all.routing.index || all.is_of_groups(i)) continue;
    const Tensor& x = all.in[i];
    rows.in[i] =
        x.shape().has(choices) ? rows.way.choices_to_owners(x) : rows.way.tokens_to_owners(x);
  }
  rows.in[all.routing.index] = rows.way.indices_at_owners();
  return rows;
}

Tensor combined(const Routed& all, const std::vector<Dispatched>& chunks) {
  const double used = chunks.back().way.used();
  Tensors back;
  for (const Dispatched& rows : chunks) {
    const PreferScope prefer(all.graph(), rows.in[0]);
    back.push_back(rows.way.to_tokens(all.result(rows.in, rows.in[0].shape(), used)));
  }
  Tensor sums;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const Tensor part = chunks[i].way.combined(back[i]);
    sums = sums.empty() ? part : sums + part;
  }
  return chunks[0].way.by_tokens(sums, all.in[0].shape());
}

/// w [slices, inner, ...] as `shape`, without the padding of the last slice.
Tensor in_one(const Tensor& w, const Dim& groups, const Dim& inner, const Shape& shape) {
  std::vector<Dim> dims;
  const int64_t room = w.dim(groups.name).size * inner.size;
  for (const Dim& d : shape) dims.push_back(d.name == groups.name ? Dim(d.name, room) : d);
  const Tensor all = reshape(w, Shape(dims));
  return room == groups.size ? all : slice(all, groups.name, 0, groups.size);
}

/// The gradients for the floating operands of the call, by the gradient of the routed result.
Tensors gradients_of(const Routed& all, const Tensor& result, const Tensor& of_result,
                     const std::vector<ValueType>& out) {
  Tensors wanted;
  std::vector<char> are_of_groups;
  for (size_t i = 0; i < all.in.size(); ++i) {
    if (!is_floating(all.in[i].dtype())) continue;
    wanted.push_back(all.in[i]);
    are_of_groups.push_back(all.is_of_groups(i));
  }
  Tensors grads = gradients(result * of_result, wanted);
  for (size_t i = 0; i < grads.size(); ++i) {
    if (are_of_groups[i]) grads[i] = in_one(grads[i], all.groups, all.inner, out[i].shape);
  }
  return grads;
}

}  // namespace

Body routed_form(const OpCall& call, int64_t slices, const std::optional<TokenSlices>& tokens,
                 const ProgramVariant& variant) {
  const OnBehalf composite;
  Body body = body_with_inputs(call);
  const Op* forward = call.op.gradient_of;
  const Tensors in(body.in.begin(), body.in.end() - (forward ? 1 : 0));
  const Routed all = routed(forward ? *forward : call.op, call.attrs, in, slices);
  std::optional<PreferScope> prefer;
  Tensor result;
  if (tokens) {
    const double capacity = all.routing.capacity * variant.capacity;
    const int64_t count = variant.chunks();
    std::vector<Dispatched> chunks;
    for (int64_t chunk = 0; chunk < count; ++chunk)
      chunks.push_back(dispatched(all, *tokens, capacity, {chunk, count}));
    result = combined(all, chunks);
  } else {
    const Tensors here = gathered(all);
    prefer.emplace(all.graph(), here[all.routing.index]);
    result = all.result(here, in[0].shape(), 1 / static_cast<double>(slices));
  }
  body.out = forward ? gradients_of(all, result, body.in.back(), call.out) : Tensors{result};
  require_same_results(call, body, "body_of_rows");
  return body;
}

}  // namespace tessera
