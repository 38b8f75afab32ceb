// Reductions over named dims. Each is one record with its combiner; the rest follows from the index
// space by name.
#include "ir/emit.h"
#include "ir/source_ops.h"
#include "ops/infer.h"
#include "ops/precision.h"
#include "ops/sum_to.h"
#include "tessera/ops.h"

namespace tessera {

namespace {

using Types = std::vector<ValueType>;

Types infer_reduce(const OpCall& call) {
  const auto& axes = call.attrs.get<std::vector<std::string>>("axes");
  require_dims(call.in[0].shape, axes, "reduced");
  return {{call.in[0].shape.without(axes), call.in[0].dtype}};
}

Types infer_sum(const OpCall& call) {
  require_number(call.in[0].dtype);
  return infer_reduce(call);
}

Types infer_bool(const OpCall& call) {
  TESSERA_REQUIRE(call.in[0].dtype == DType::bool_, "the operand is {}; it must be bool",
                  to_string(call.in[0].dtype));
  return infer_reduce(call);
}

void emit_reduce(EmitCall& call) {
  const std::vector<int> factors = all_factors(call);
  call.step.combiner = call.call.op.combiner;
  call.step.in.push_back(align(call, call.in[0], call.space.in[0], factors));
  call.step.out.push_back(align(call, call.out[0], call.space.out[0], factors, true));
}

/// The gradient is divided equally among the elements that equal the extremum.
std::vector<Tensor> extremum_gradient(const GradCall& c) {
  const Tensor& x = c.in[0];
  Tensor hit = equal(x, c.out[0]);
  Tensor count = reduce_sum(cast(hit, x.dtype()), c.attrs.get<std::vector<std::string>>("axes"));
  Tensor zero = constant(c.graph, 0, x.dtype());
  return {transpose(where(hit, c.grads[0] / count, zero), x.shape())};
}

/// The gradient of x_i is g times the product of the other elements. It is computed from the
/// product of the nonzero elements and the number of zeros, so it is exact for any number of zeros.
/// In float64: a product of all may leave the range of float32 where that of the others does not.
std::vector<Tensor> prod_gradient(const GradCall& c) {
  const Tensor x = narrow(c.in[0], DType::float64);
  const auto& axes = c.attrs.get<std::vector<std::string>>("axes");
  Tensor zero = constant(c.graph, 0, x.dtype()), unit = constant(c.graph, 1, x.dtype());
  Tensor is_zero = equal(x, zero);
  Tensor zeros = reduce_sum(where(is_zero, unit, zero), axes);
  Tensor rest = reduce_prod(where(is_zero, unit, x), axes);
  Tensor others = where(is_zero, where(equal(zeros, unit), rest, zero),
                        where(equal(zeros, zero), rest / where(is_zero, unit, x), zero));
  const Tensor all = others * narrow(c.grads[0], DType::float64);
  return {narrow(sum_to(all, x.shape()), c.in[0].dtype())};
}

Tensor reduce(const Op& op, Tensor x, const Axes& axes, Loc at) {
  return one(op, {x}, {{"axes", axes.names()}}, at);
}

}  // namespace

extern const Op kReduceSum = {.name = "reduce_sum",
                              .infer = infer_sum,
                              .combiner = Combiner::sum,
                              .linear = {1u},
                              .gradient = [](const GradCall& c) -> std::vector<Tensor> {
                                return {broadcast(c.grads[0], c.in[0].shape())};
                              },
                              .kernel = KernelKind::reduce,
                              .emit = emit_reduce};
extern const Op kReduceMax = {.name = "reduce_max",
                              .infer = infer_reduce,
                              .combiner = Combiner::max,
                              .gradient = extremum_gradient,
                              .kernel = KernelKind::reduce,
                              .emit = emit_reduce};
extern const Op kReduceMin = {.name = "reduce_min",
                              .infer = infer_reduce,
                              .combiner = Combiner::min,
                              .gradient = extremum_gradient,
                              .kernel = KernelKind::reduce,
                              .emit = emit_reduce};
extern const Op kReduceProd = {.name = "reduce_prod",
                               .infer = infer_sum,
                               .combiner = Combiner::prod,
                               .gradient = prod_gradient,
                               .kernel = KernelKind::reduce,
                               .emit = emit_reduce};
extern const Op kReduceAny = {.name = "reduce_any",
                              .infer = infer_bool,
                              .combiner = Combiner::any,
                              .kernel = KernelKind::reduce,
                              .emit = emit_reduce};
extern const Op kReduceAll = {.name = "reduce_all",
                              .infer = infer_bool,
                              .combiner = Combiner::all,
                              .kernel = KernelKind::reduce,
                              .emit = emit_reduce};

Tensor reduce_sum(Tensor x, const Axes& axes, Loc at) { return reduce(kReduceSum, x, axes, at); }
Tensor reduce_max(Tensor x, const Axes& axes, Loc at) { return reduce(kReduceMax, x, axes, at); }
Tensor reduce_min(Tensor x, const Axes& axes, Loc at) { return reduce(kReduceMin, x, axes, at); }
Tensor reduce_prod(Tensor x, const Axes& axes, Loc at) { return reduce(kReduceProd, x, axes, at); }
Tensor reduce_any(Tensor x, const Axes& axes, Loc at) { return reduce(kReduceAny, x, axes, at); }
Tensor reduce_all(Tensor x, const Axes& axes, Loc at) { return reduce(kReduceAll, x, axes, at); }

Tensor reduce_mean(Tensor x, const Axes& axes, Loc at) {
  return on_behalf_of("reduce_mean", at, [&]() -> Tensor {
    Graph& g = x.graph();
    TESSERA_REQUIRE(is_floating(x.dtype()), "x is {}; a mean needs a floating type, use cast()",
                    to_string(x.dtype()));
    if (is_narrow(x.dtype()))  // the sum may overflow 16 bits
      return cast(reduce_mean(cast(x, DType::float32, at), axes, at), x.dtype(), at);
    Tensor sum = reduce_sum(x, axes, at);
    double fixed = 1;
    for (const std::string& name : axes.names()) {
      const Dim& dim = x.dim(name);
      if (dim.is_bounded) {
        sum = div(sum, dim_size(g, dim, x.dtype(), at), at);
      } else {
        fixed *= static_cast<double>(dim.size);
      }
    }
    return fixed == 1 ? sum : mul(sum, constant(g, 1 / fixed, x.dtype(), {}, at), at);
  });
}

Tensor reduce_logsumexp(Tensor x, const Axes& axes, Loc at) {
  return on_behalf_of("reduce_logsumexp", at, [&]() -> Tensor {
    if (is_narrow(x.dtype()))
      return cast(reduce_logsumexp(cast(x, DType::float32, at), axes, at), x.dtype(), at);
    const Tensor most = reduce_max(x, axes, at), zero = constant(x.graph(), 0, x.dtype(), {}, at);
    const Tensor top = stop_gradient(where(is_finite(most, at), most, zero, at), at);
    return add(log(reduce_sum(exp(sub(x, top, at), at), axes, at), at), top, at);
  });
}

Tensor sum_all(Tensor x, Loc at) {
  return on_behalf_of("sum_all", at, [&] {
    return x.shape().rank() ? reduce_sum(x, Axes(x.shape().names()), at) : x;
  });
}
Tensor mean_all(Tensor x, Loc at) {
  return on_behalf_of("mean_all", at, [&] {
    return x.shape().rank() ? reduce_mean(x, Axes(x.shape().names()), at) : x;
  });
}

}  // namespace tessera
