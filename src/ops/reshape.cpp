// Ops that move elements without computing: transpose, reshape, rename. A reshape's factors are the
// common refinement of the two lists of dims, read from the left: [batch, length] -> [tokens] has
// tokens = [batch, length]; sizes that do not nest, (4, 6) -> (6, 4), go through one flat dim.
#include <algorithm>

#include "ir/emit.h"
#include "ir/source_ops.h"
#include "ops/infer.h"
#include "tessera/ops.h"

namespace tessera {

namespace {

std::vector<ValueType> infer_transpose(const OpCall& call) {
  const Shape out = shape_of(call.attrs);
  const Shape& in = call.in[0].shape;
  bool same = in.rank() == out.rank();
  for (const Dim& d : in) same = same && out.has(d.name) && out.dim(d.name) == d;
  require(same, "{} and {} do not have the same dims", in.to_string(), out.to_string());
  return {{out, call.in[0].dtype}};
}

std::vector<ValueType> infer_reshape(const OpCall& call) {
  const Shape out = shape_of(call.attrs);
  const Shape& in = call.in[0].shape;
  require(in.elements() == out.elements(), "{} has {} elements but {} has {}", in.to_string(),
          in.elements(), out.to_string(), out.elements());
  return {{out, call.in[0].dtype}};
}

/// The next dim to the left of position i that has more than one element (dims of size 1 have no
/// factors).
int next_dim(const Shape& shape, int i) {
  while (i >= 0 && shape[i].size == 1) --i;
  return i;
}

/// Cuts both lists of dims into factors, from the right. Returns false where the sizes do not nest.
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

IndexSpace reshape_factors(const OpCall& call) {
  IndexSpace space;
  check(refine(call.in[0].shape, call.out[0].shape, space), "the dims of {} and {} do not nest",
        call.in[0].shape.to_string(), call.out[0].shape.to_string());
  return space;
}

void emit_copy(EmitCall& call) {
  call.step.kernel = "copy";
  call.step.attrs = {};
  emit_aligned(call);
}

}  // namespace

extern const Op kTranspose = {.name = "transpose",
                              .infer = infer_transpose,
                              .linear = {1u},
                              .gradient = [](const GradCall& c) -> std::vector<Tensor> {
                                return {transpose(c.grads[0], c.in[0].shape())};
                              },
                              .emit = emit_copy};
extern const Op kReshape = {.name = "reshape",
                            .infer = infer_reshape,
                            .factors = reshape_factors,
                            .linear = {1u},
                            .gradient = [](const GradCall& c) -> std::vector<Tensor> {
                              return {reshape(c.grads[0], c.in[0].shape())};
                            },
                            .emit = emit_copy};

Tensor transpose(Tensor x, const Shape& shape, Loc at) {
  return one(x.graph(), kTranspose, {x}, source_attrs(shape, x.dtype()), at);
}
Tensor reshape(Tensor x, const Shape& shape, Loc at) {
  IndexSpace space;
  if (x.shape().elements() == shape.elements() && !refine(x.shape(), shape, space)) {
    const Shape flat{Dim("elements", shape.elements())};
    x = one(x.graph(), kReshape, {x}, source_attrs(flat, x.dtype()), at);
  }
  return one(x.graph(), kReshape, {x}, source_attrs(shape, x.dtype()), at);
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
