// Ops that move elements without computing: transpose, reshape, rename. The factors of a reshape
// are the common refinement of both lists of dims: [batch, length] -> [tokens] has tokens = [batch,
// length]. If the sizes do not nest, (4, 6) -> (6, 4), or nest but are padded, elements are sent
// individually.
#include <algorithm>

#include "ir/emit.h"
#include "ir/source_ops.h"
#include "ops/bounded.h"
#include "ops/infer.h"
#include "tessera/ops.h"

namespace tessera {

namespace {

std::vector<ValueType> infer_transpose(const OpCall& call) {
  const Shape out = shape_of(call.attrs);
  const Shape& in = call.in[0].shape;
  bool same = in.rank() == out.rank();
  for (const Dim& d : in) same = same && out.has(d.name) && out.dim(d.name) == d;
  TESSERA_REQUIRE(same, "{} and {} do not have the same dims", in.to_string(), out.to_string());
  return {{out, call.in[0].dtype}};
}

/// The row-major stride of dim i, and that stride times its size.
struct Reach {
  int64_t step = 1, all = 1;
};
Reach reach_of(const Shape& shape, int i) {
  Reach reach;
  for (int d = shape.rank() - 1; d > i; --d) reach.step *= shape[d].size;
  reach.all = reach.step * shape[i].size;
  return reach;
}

/// True if `shape` has a bounded dim that overlaps `reach`. aligned: one with the same `all`, so
/// that the elements present come first in both; else one with another.
bool has_bounded_along(const Shape& shape, const Reach& reach, bool aligned) {
  for (int j = 0; j < shape.rank(); ++j) {
    const Reach other = reach_of(shape, j);
    const bool meets = other.step < reach.all && reach.step < other.all;
    if (shape[j].is_bounded && meets && (other.all == reach.all) == aligned) return true;
  }
  return false;
}

/// Zeroes the padding of a bounded dim, as a dim of fixed size does not know where padding begins.
Tensor without_padding(Tensor x, const Dim& dim, Loc at) {
  Graph& g = x.graph();
  const Tensor zero = constant(g, 0, x.dtype(), {}, at);
  return transpose(where(present(g, dim, at), x, zero, at), x.shape(), at);
}

std::vector<ValueType> infer_reshape(const OpCall& call) {
  const Shape out = shape_of(call.attrs);
  const Shape& in = call.in[0].shape;
  TESSERA_REQUIRE(in.elements() == out.elements(), "{} has {} elements but {} has {}",
                  in.to_string(), in.elements(), out.to_string(), out.elements());
  return {{out, call.in[0].dtype}};
}

/// The next dim to the left of position i with more than one element; dims of size 1 have no
/// factors.
int next_dim(const Shape& shape, int i) {
  while (i >= 0 && shape[i].size == 1) --i;
  return i;
}

/// Divides both lists of dims into common factors, from the right. False if the sizes do not nest.
bool refine(const Shape& a, const Shape& b, IndexSpace& space) {
  std::vector<std::vector<int>> in(a.rank()), out(b.rank());
  int i = next_dim(a, a.rank() - 1), j = next_dim(b, b.rank() - 1);
  int64_t left = i >= 0 ? a[i].size : 1, right = j >= 0 ? b[j].size : 1;
  while (i >= 0 && j >= 0) {
    const int64_t size = std::min(left, right);
    if (left % size || right % size) return false;
    const int f = static_cast<int>(space.factors.size());
    const std::string name = size == a[i].size   ? a[i].name
                             : size == b[j].size ? b[j].name
                                                 : a[i].name + "/" + b[j].name;
    space.factors.push_back({name, size, Role::map, Combiner::sum});
    in[i].insert(in[i].begin(), f);
    out[j].insert(out[j].begin(), f);
    if ((left /= size) == 1 && (i = next_dim(a, i - 1)) >= 0) left = a[i].size;
    if ((right /= size) == 1 && (j = next_dim(b, j - 1)) >= 0) right = b[j].size;
  }
  std::reverse(space.factors.begin(), space.factors.end());  // memory order: major first
  const int last = static_cast<int>(space.factors.size()) - 1;
  for (auto* dims : {&in, &out}) {
    for (auto& factors : *dims) {
      for (int& f : factors) f = last - f;
    }
  }
  space.in = {in};
  space.out = {out};
  return true;
}

/// If the sizes do not nest, all dims are whole.
IndexSpace reshape_factors(const OpCall& call) {
  IndexSpace space;
  if (!refine(call.in[0].shape, call.out[0].shape, space)) {
    space = {};
    auto whole = [&](const Shape& shape) {
      std::vector<std::vector<int>> dims;
      for (const Dim& d : shape) {
        dims.push_back({static_cast<int>(space.factors.size())});
        space.factors.push_back({d.name, d.size, Role::whole, Combiner::sum});
      }
      return dims;
    };
    space.out = {whole(call.out[0].shape)};
    space.in = {whole(call.in[0].shape)};
  }
  space.same_order = true;
  return space;
}

void emit_reshape(EmitCall& call) {
  const bool nests = std::all_of(call.space.factors.begin(), call.space.factors.end(),
                                 [](const Factor& f) { return f.role == Role::map; });
  if (nests) return emit_aligned(call);
  auto flat = [&](View view) {
    TESSERA_CHECK(view.is_contiguous() && view.elements() == call.call.out[0].shape.elements(),
                  "[reshape] of a slice whose dims do not nest");
    view.sizes = {view.elements()};
    view.strides = {1};
    return view;
  };
  call.step.in = {flat(call.in[0])};
  call.step.out = {flat(call.out[0])};
}

}  // namespace

extern const Op kTranspose = {.name = "transpose",
                              .infer = infer_transpose,
                              .linear = {1u},
                              .gradient = [](const GradCall& c) -> std::vector<Tensor> {
                                return {transpose(c.grads[0], c.in[0].shape())};
                              },
                              .keeps_elements = true,
                              .kernel = KernelKind::copy,
                              .emit = emit_aligned};
extern const Op kReshape = {.name = "reshape",
                            .infer = infer_reshape,
                            .factors = reshape_factors,
                            .linear = {1u},
                            .gradient = [](const GradCall& c) -> std::vector<Tensor> {
                              return {reshape(c.grads[0], c.in[0].shape())};
                            },
                            .keeps_elements = true,
                            .kernel = KernelKind::copy,
                            .emit = emit_reshape};

Tensor transpose(Tensor x, const Shape& shape, Loc at) {
  return on_behalf_of("transpose", at,
                      [&] { return one(kTranspose, {x}, source_attrs(shape, x.dtype()), at); });
}

Tensor reshape(Tensor x, const Shape& shape, Loc at) {
  return on_behalf_of("reshape", at, [&] {
    IndexSpace space;
    bool bounded = false;
    const Shape from = x.shape();
    for (int i = 0; i < from.rank(); ++i) {
      bounded |= from[i].is_bounded;
      const auto others =
          std::count_if(from.begin(), from.end(), [](const Dim& d) { return d.is_bounded; }) - 1;
      TESSERA_REQUIRE(
          !from[i].is_bounded || !has_bounded_along(shape, reach_of(from, i), false),
          "the dim '{}' of {} is bounded, and its elements would not come first in a bounded "
          "dim of {}; {}",
          from[i].name, from.to_string(), shape.to_string(),
          others == 0
              ? "transpose() before, so that it stays whole"
              : fmt::format("a bounded dim is made of one bounded dim and fixed ones behind "
                            "it, so reshape() '{}' to a dim of fixed size before, where zeros "
                            "stand for what is not there",
                            from[i].name));
      if (from[i].is_bounded && from[i].size > 1 &&
          !has_bounded_along(shape, reach_of(from, i), true))
        x = without_padding(x, from[i], at);
    }
    if (bounded && x.shape().elements() == shape.elements() && !refine(x.shape(), shape, space)) {
      const Shape flat{Dim("elements", shape.elements())};
      x = one(kReshape, {x}, source_attrs(flat, x.dtype()), at);
    }
    return one(kReshape, {x}, source_attrs(shape, x.dtype()), at);
  });
}
Tensor rename(Tensor x, const std::string& from, const std::string& to, Loc at) {
  return on_behalf_of("rename", at, [&] {
    std::vector<Dim> dims = x.shape().dims();
    for (Dim& d : dims) {
      if (d.name == from) d = d.renamed(to);
    }
    x.dim(from);  // must exist
    return reshape(x, Shape(std::move(dims)), at);
  });
}

}  // namespace tessera
