// Products of rows with the matrices that their indices choose, and the gradient for the matrices,
// as gather and scatter_add are of rows. The index spaces are by name. grouped_dot looks matrices
// up by value: if ranks have slices of them, each computes the rows of its own ones, with zeros for
// the others, and the sum over the ranks is the result. grouped_outer makes the matrices of its own
// slice. Each is the gradient of the other. If grouped_dot makes one row of several, each of which
// has a matrix of its own, it has no one order of sums: that of a rank with some of the matrices
// would be another one. So strict numerics add these rows up in an op of their own.
#include <algorithm>
#include <iterator>

#include "base/misspelt.h"
#include "ir/emit.h"
#include "ir/source_ops.h"
#include "ops/infer.h"
#include "program/specs.h"
#include "tessera/ops.h"

namespace tessera {

namespace {

using Tensors = std::vector<Tensor>;

/// Throws unless every dim of `shape` is in one of the others.
void require_used(const Shape& shape, const char* what, const Shape& a, const Shape& b,
                  const char* others) {
  for (const Dim& d : shape) {
    TESSERA_REQUIRE(a.has(d.name) || b.has(d.name), "dim '{}' of {} {} is not in {}{}", d.name,
                    what, shape.to_string(), others, suggestion(d.name, a.united(b).names()));
  }
}

/// What both ops ask of rows x and z (operands or results), matrices w and indices.
void require_rows(const OpCall& call, const ValueType& x, const Shape& w, const Shape& z) {
  const std::string& dim = dim_of(call.attrs);
  const ValueType& indices = call.in[2];
  require_index(indices);
  TESSERA_REQUIRE(is_floating(x.dtype), "the rows are {}; cast() them to a floating type",
                  to_string(x.dtype));
  TESSERA_REQUIRE(call.in[1].dtype == x.dtype,
                  "operands are {} and {}; they must agree, use cast()", to_string(x.dtype),
                  to_string(call.in[1].dtype));
  require_dims(w, {dim}, "indexed");
  for (const Shape& rows : {x.shape, z, indices.shape}) {
    TESSERA_REQUIRE(!rows.has(dim), "the indexed dim '{}' is also in {}, which are rows", dim,
                    rows.to_string());
  }
  require_same_sizes(call);
  const Shape out = shape_of(call.attrs),
              all = x.shape.united(call.in[1].shape).united(indices.shape);
  for (const Dim& d : out) {
    TESSERA_REQUIRE(!all.has(d.name) || all.dim(d.name) == d,
                    "dim '{}' is {} in the result and {} in the operands", d.name, d.size,
                    all.has(d.name) ? all.dim(d.name).size : 0);
  }
  require_used(indices.shape, "the indices", x.shape, z, "the rows");
  require_used(w.without({dim}), "the matrices", x.shape, z, "the rows");
  require_used(x.shape, "the rows", w.united(z), indices.shape, "what they are multiplied by");
  require_used(z, "the rows", w.united(x.shape), indices.shape, "what they are multiplied by");
}

std::vector<ValueType> infer_dot(const OpCall& call) {
  const Shape out = shape_of(call.attrs);
  require_rows(call, call.in[0], call.in[1].shape, out);
  return {{out, call.in[0].dtype}};
}

std::vector<ValueType> infer_outer(const OpCall& call) {
  const Shape out = shape_of(call.attrs);
  require_rows(call, call.in[0], out, call.in[1].shape);
  return {{out, call.in[0].dtype}};
}

IndexSpace dot_factors(const OpCall& call) {
  IndexSpace space = index_space_by_name(call);
  for (Factor& f : space.factors) {
    if (f.name == dim_of(call.attrs)) f.role = Role::lookup, f.combiner = Combiner::sum;
  }
  return space;
}

/// A product and a sum for each element of each row, of the rows that are expected to be in range.
int64_t flops(const OpCall& call) {
  Shape all = call.out[0].shape;
  for (const ValueType& in : call.in) all = all.united(in.shape);
  return static_cast<int64_t>(2 * call.attrs.get<double>("used") *
                              static_cast<double>(all.without({dim_of(call.attrs)}).elements()));
}

/// Views over all factors, and what each factor is.
void emit(EmitCall& call, const Shape& x, const Shape& w, const Shape& z) {
  const std::vector<int> factors = all_factors(call);
  for (size_t i = 0; i < call.in.size(); ++i)
    call.step.in.push_back(align(call, call.in[i], call.space.in[i], factors, true));
  call.step.out.push_back(align(call, call.out[0], call.space.out[0], factors, true));
  const Shape& indices = call.call.in[2].shape;
  GroupedSpec spec{{}, call.call.attrs.get<double>("used")};
  for (const Factor& f : call.space.factors) {
    const bool in_x = x.has(f.name), in_w = w.has(f.name), in_z = z.has(f.name);
    const bool is_batch = in_w && (indices.has(f.name) || (in_x && in_z));
    spec.kinds.push_back(f.name == dim_of(call.call.attrs) ? kGroupIndexed
                         : is_batch                        ? kGroupBatch
                         : !in_w                           ? kGroupPosition
                         : in_x                            ? kGroupInner
                                                           : kGroupOuter);
  }
  const int group = call.factor(dim_of(call.call.attrs));
  call.step.spec = std::move(spec);
  call.step.exprs = {call.offset[group], call.extent[group]};
}

void emit_dot(EmitCall& call) {
  emit(call, call.call.in[0].shape, call.call.in[1].shape, call.call.out[0].shape);
}
void emit_outer(EmitCall& call) {
  emit(call, call.call.in[0].shape, call.call.out[0].shape, call.call.in[1].shape);
}

Tensors dot_gradient(const GradCall& c) {
  const double used = c.attrs.get<double>("used");
  const std::string& dim = dim_of(c.attrs);
  return {grouped_dot(c.grads[0], c.in[1], c.in[2], dim, c.in[0].shape(), used),
          grouped_outer(c.in[0], c.grads[0], c.in[2], dim, c.in[1].shape(), used), Tensor()};
}

/// If several rows become one: their products, and then the sum of these.
Tensors dot_ordered_body(const OpCall& call, const Tensors& in) {
  const Shape &out = call.out[0].shape, &w = in[1].shape(), &indices = in[2].shape();
  const auto is_of_matrix = [&](const Dim& d) { return w.has(d.name) && !indices.has(d.name); };
  std::vector<Dim> dims;  // those of a row are the innermost
  const auto take = [&](const Shape& from, auto&& wanted) {
    std::copy_if(from.begin(), from.end(), std::back_inserter(dims), wanted);
  };
  take(out, [&](const Dim& d) { return !is_of_matrix(d); });
  take(in[0].shape().united(indices),
       [&](const Dim& d) { return !out.has(d.name) && !is_of_matrix(d); });
  take(out, is_of_matrix);
  const Shape rows(dims);
  if (rows.rank() == out.rank()) return {};
  const Tensor each =
      grouped_dot(in[0], in[1], in[2], dim_of(call.attrs), rows, call.attrs.get<double>("used"));
  const Tensor sum = reduce_sum(each, rows.without(out.names()).names());
  return {sum.shape() == out ? sum : transpose(sum, out)};
}

Tensors outer_gradient(const GradCall& c) {
  const double used = c.attrs.get<double>("used");
  const std::string& dim = dim_of(c.attrs);
  return {grouped_dot(c.in[1], c.grads[0], c.in[2], dim, c.in[0].shape(), used),
          grouped_dot(c.in[0], c.grads[0], c.in[2], dim, c.in[1].shape(), used), Tensor()};
}

Tensor grouped(const Op& op, const Tensors& in, const std::string& dim, const Shape& out,
               double used, Loc at) {
  return on_behalf_of(op.name, at, [&] {
    TESSERA_REQUIRE(used > 0 && used <= 1, "used {}; it is a share of the rows, in (0, 1]", used);
    Attrs attrs = source_attrs(out, in[0].dtype());
    attrs.set("dim", dim);
    attrs.set("used", used);
    return one(op, in, std::move(attrs), at);
  });
}

}  // namespace

extern const Op kGroupedDot = {.name = "grouped_dot",
                               .infer = infer_dot,
                               .factors = dot_factors,
                               .linear = {1u, 2u},
                               .zero_padding = 4u,
                               .gradient = dot_gradient,
                               .flops = flops,
                               .kernel = KernelKind::grouped_dot,
                               .emit = emit_dot,
                               .ordered_body = dot_ordered_body};
extern const Op kGroupedOuter = {.name = "grouped_outer",
                                 .infer = infer_outer,
                                 .linear = {1u, 2u},
                                 .zero_padding = 4u,
                                 .gradient = outer_gradient,
                                 .flops = flops,
                                 .kernel = KernelKind::grouped_outer,
                                 .emit = emit_outer};

Tensor grouped_dot(Tensor x, Tensor w, Tensor indices, const std::string& dim, const Shape& out,
                   double used, Loc at) {
  return grouped(kGroupedDot, {x, w, indices}, dim, out, used, at);
}

Tensor grouped_outer(Tensor x, Tensor z, Tensor indices, const std::string& dim, const Shape& out,
                     double used, Loc at) {
  return grouped(kGroupedOuter, {x, z, indices}, dim, out, used, at);
}

}  // namespace tessera
