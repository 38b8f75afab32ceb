// Indexed access. The dim that gather indexes has the role `lookup`: if it is split, each rank
// looks up its own rows with zeros elsewhere, and the sum over the axis is the result. The dim that
// scatter_add indexes belongs to the result: each rank applies the updates of its own rows, so the
// role is `fresh` and the result complete.
#include "base/misspelt.h"
#include "ir/emit.h"
#include "ir/source_ops.h"
#include "ops/infer.h"
#include "ops/sum_to.h"
#include "tessera/ops.h"

namespace tessera {

namespace {

OutOfRange rule_of(const Attrs& attrs) {
  const auto& name = attrs.get<std::string>("out_of_range");
  for (OutOfRange r : {OutOfRange::zero, OutOfRange::drop, OutOfRange::clamp}) {
    if (name == to_string(r)) return r;
  }
  return OutOfRange::error;
}

std::vector<ValueType> infer_gather(const OpCall& call) {
  const auto& dim = call.attrs.get<std::string>("dim");
  require_index(call.in[1]);
  require_dims(call.in[0].shape, {dim}, "indexed");
  TESSERA_REQUIRE(!call.in[1].shape.has(dim),
                  "the indexed dim '{}' is also in the indices {}; rename it there", dim,
                  call.in[1].shape.to_string());
  require_same_sizes(call);
  return {{call.in[1].shape.united(call.in[0].shape.without({dim})), call.in[0].dtype}};
}

std::vector<ValueType> infer_scatter(const OpCall& call) {
  const auto& dim = call.attrs.get<std::string>("dim");
  const Shape out = shape_of(call.attrs);
  require_number(call.in[1].dtype);
  require_index(call.in[0]);
  require_dims(out, {dim}, "indexed");
  TESSERA_REQUIRE(!call.in[1].shape.has(dim) && !call.in[0].shape.has(dim),
                  "the indexed dim '{}' is also in an operand", dim);
  require_same_sizes(call);
  for (const Dim& d : call.in[0].shape) {
    TESSERA_REQUIRE(call.in[1].shape.has(d.name),
                    "dim '{}' of the indices is not in the updates {}", d.name,
                    call.in[1].shape.to_string());
  }
  for (const Dim& d : out) {
    if (d.name == dim) continue;
    TESSERA_REQUIRE(call.in[1].shape.has(d.name), "dim '{}' of the result is not in the updates {}",
                    d.name, call.in[1].shape.to_string());
    TESSERA_REQUIRE(call.in[1].shape.dim(d.name) == d,
                    "the updates are {} and the result is {}; dim '{}' must be the same in both",
                    call.in[1].shape.to_string(), out.to_string(), d.name);
  }
  return {{out, call.in[1].dtype}};
}

/// By name, with `role` for the indexed dim.
IndexSpace indexed_space(const OpCall& call, Role role) {
  IndexSpace space = index_space_by_name(call);
  for (Factor& f : space.factors) {
    if (f.name == call.attrs.get<std::string>("dim")) f.role = role;
  }
  return space;
}

/// Each rank looks up its rows and has zeros for the others. They are summed, or or-ed for bool.
IndexSpace gather_factors(const OpCall& call) {
  IndexSpace space = indexed_space(call, Role::lookup);
  for (Factor& f : space.factors) {
    if (f.role == Role::lookup && call.in[0].dtype == DType::bool_) f.combiner = Combiner::any;
  }
  return space;
}
IndexSpace scatter_factors(const OpCall& call) { return indexed_space(call, Role::fresh); }

/// The factors of one operand's dims, in their order.
std::vector<int> factors_of(const std::vector<std::vector<int>>& dims) {
  std::vector<int> factors;
  for (const auto& d : dims) factors.push_back(d[0]);
  return factors;
}

void emit_indexed(EmitCall& call, const View& table,
                  const std::vector<std::vector<int>>& table_dims,
                  const std::vector<int>& iteration) {
  const Attrs& attrs = call.call.attrs;
  const int indexed = call.factor(attrs.get<std::string>("dim"));
  call.step.spec = IndexedSpec{align(call, table, table_dims, iteration).strides,
                               align(call, table, table_dims, {indexed}).strides[0],
                               call.local[indexed],
                               rule_of(attrs),
                               attrs.get<int64_t>("bound", -1),
                               attrs.get<int64_t>("capacity", -1)};
  call.step.exprs = {call.offset[indexed], call.extent[indexed]};
}

void emit_gather(EmitCall& call) {
  const std::vector<int> iteration = factors_of(call.space.out[0]);
  call.step.in = {call.in[0], align(call, call.in[1], call.space.in[1], iteration)};
  call.step.out = {call.out[0]};
  emit_indexed(call, call.in[0], call.space.in[0], iteration);
}

void emit_scatter(EmitCall& call) {
  const std::vector<int> iteration = factors_of(call.space.in[1]);
  call.step.in = {align(call, call.in[0], call.space.in[0], iteration), call.in[1]};
  call.step.out = {call.out[0]};
  emit_indexed(call, call.out[0], call.space.out[0], iteration);
  for (SumOrder::Along& a : call.step.order.along)
    a.dim = std::find(iteration.begin(), iteration.end(), a.dim) - iteration.begin();
}

std::vector<Tensor> gather_gradient(const GradCall& c) {
  const auto& dim = c.attrs.get<std::string>("dim");
  const OutOfRange rule = rule_of(c.attrs);
  return {scatter_add(c.in[1], c.grads[0], c.in[0].shape(), dim, rule), Tensor()};
}

std::vector<Tensor> scatter_gradient(const GradCall& c) {
  const auto& dim = c.attrs.get<std::string>("dim");
  const OutOfRange rule = rule_of(c.attrs);
  return {Tensor(), sum_to(gather(c.grads[0], c.in[0], dim, rule), c.in[1].shape())};
}

}  // namespace

extern const Op kGather = {.name = "gather",
                           .infer = infer_gather,
                           .factors = gather_factors,
                           .linear = {1u},
                           .zero_padding = 2u,
                           .gradient = gather_gradient,
                           .kernel = KernelKind::gather,
                           .emit = emit_gather};
extern const Op kScatterAdd = {.name = "scatter_add",
                               .infer = infer_scatter,
                               .factors = scatter_factors,
                               .linear = {2u},
                               .zero_padding = 3u,
                               .gradient = scatter_gradient,
                               .kernel = KernelKind::scatter_add,
                               .emit = emit_scatter};

Tensor gather(Tensor weights, Tensor indices, const std::string& dim, OutOfRange out_of_range,
              Loc at) {
  const bool is_users = is_users_call(at);
  return on_behalf_of("gather", at, [&] {
    if (is_users) require_no_misspelling(indices.shape(), weights.shape().without({dim}));
    return one(kGather, {weights, indices},
               {{"dim", dim}, {"out_of_range", std::string(to_string(out_of_range))}}, at);
  });
}

Tensor take_along(Tensor x, Tensor indices, const std::string& dim, OutOfRange out_of_range,
                  Loc at) {
  return on_behalf_of("take_along", at, [&] {
    TESSERA_REQUIRE(
        x.shape().has(dim) && indices.shape().has(dim),
        "dim '{}' is not in both x {} and the indices {}; gather() takes indices without it", dim,
        x.shape().to_string(), indices.shape().to_string());
    const std::string taken = dim + "_taken";
    return rename(gather(x, rename(indices, dim, taken, at), dim, out_of_range, at), taken, dim,
                  at);
  });
}

Tensor scatter_add(Tensor indices, Tensor updates, const Shape& out, const std::string& dim,
                   OutOfRange out_of_range, Loc at) {
  return on_behalf_of("scatter_add", at, [&] {
    Attrs attrs = source_attrs(out, updates.dtype());
    attrs.set("dim", dim);
    attrs.set("out_of_range", std::string(to_string(out_of_range)));
    return one(kScatterAdd, {indices, updates}, std::move(attrs), at);
  });
}

Tensor scatter(Tensor x, Tensor indices, Tensor updates, const std::string& dim,
               OutOfRange out_of_range, Loc at) {
  return on_behalf_of("scatter", at, [&] {
    TESSERA_REQUIRE(updates.dtype() == x.dtype(),
                    "the updates are {} and x is {}; they must agree, use cast()",
                    to_string(updates.dtype()), to_string(x.dtype()));
    std::vector<Dim> place;
    for (const Dim& d : x.shape()) {
      if (d.name == dim || indices.shape().has(d.name)) place.push_back(d);
    }
    const Tensor ones = constant(x.graph(), 1, DType::int32, indices.shape(), at);
    const Tensor hits = scatter_add(indices, ones, Shape(place), dim, out_of_range, at),
                 none = constant(x.graph(), 0, DType::int32, {}, at),
                 placed = scatter_add(indices, updates, x.shape(), dim, out_of_range, at);
    const Tensor result = where(greater(hits, none, at), placed, x, at);
    return result.shape() == x.shape() ? result : transpose(result, x.shape(), at);
  });
}

}  // namespace tessera
