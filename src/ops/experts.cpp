// The layer of all experts is a composite of grouped matmuls, whose rows are routed to the experts
// (Op::routing). If ranks have slices of the experts, each computes the rows of its own experts
// from end to end, and only sums over the ranks are left, of the result and of the gradients for
// rows. The products alone would leave a sum before each activation.
//
// The gradient is a composite too, which computes the hidden rows as forward does. Equal ops on
// equal operands are added to a Program once, so nothing is computed again unless the model says so
// (recompute()).
#include "tessera/experts.h"

#include <algorithm>

#include "ops/infer.h"
#include "ops/precision.h"

namespace tessera {

namespace {

using Tensors = std::vector<Tensor>;

// Operands: x, indices, gates, down, up...; those of the gradient have the gradient of y last.
constexpr size_t kIndices = 1, kGates = 2, kDown = 3, kUp = 4;

Routing routing_of_experts(const Attrs& attrs) {
  return {dim_of(attrs), kIndices, attrs.get<double>("dispatch_capacity")};
}

/// The gates weight the hidden rows: fewer than the results, of which there is then one for each
/// token.
Tensors body_of_rows(const Tensors& in, const Attrs& attrs, const std::string& groups,
                     const Shape& out, double used) {
  const Tensor &x = in[0], &indices = in[kIndices], &down = in[kDown];
  const auto& activations = attrs.get<std::vector<std::string>>("activations");
  std::vector<Dim> dims = indices.shape().dims();
  for (const Dim& d : down.shape()) {
    if (!x.shape().has(d.name) && !indices.shape().has(d.name) && d.name != groups)
      dims.push_back(d);
  }
  Tensor hidden;
  for (size_t i = 0; i < activations.size(); ++i) {
    const Tensor part =
        activate(grouped_dot(x, in[kUp + i], indices, groups, Shape(dims), used), activations[i]);
    hidden = hidden.empty() ? part : hidden * part;
  }
  return {grouped_dot(hidden * in[kGates], down, indices, groups, out, used)};
}

Tensors experts_body(const Tensors& in, const Attrs& attrs) {
  return body_of_rows(in, attrs, dim_of(attrs), in[0].shape(), 1);
}

/// Of x, gates, down, up...
Tensors experts_gradient_body(const Tensors& in, const Attrs& attrs) {
  Tensors wanted(in.begin(), in.end() - 1);
  wanted.erase(wanted.begin() + kIndices);
  return gradients(experts_body(in, attrs)[0] * in.back(), wanted);
}

std::vector<ValueType> infer_experts(const OpCall& call) { return {call.in[0]}; }

std::vector<ValueType> infer_experts_gradient(const OpCall& call) {
  std::vector<ValueType> types(call.in.begin(), call.in.end() - 1);
  types.erase(types.begin() + kIndices);
  return types;
}

}  // namespace

extern const Op kExperts;
extern const Op kExpertsGrad = {.name = "experts_grad",
                                .infer = infer_experts_gradient,
                                .body = experts_gradient_body,
                                .routing = routing_of_experts,
                                .gradient_of = &kExperts};

namespace {

Tensors experts_gradient(const GradCall& c) {
  Tensors in = c.in;
  in.push_back(c.grads[0]);
  Tensors out = c.graph.add(kExpertsGrad, in, c.attrs, Loc::current());
  out.insert(out.begin() + kIndices, Tensor());
  return out;
}

}  // namespace

const Op kExperts = {.name = "experts",
                     .infer = infer_experts,
                     .gradient = experts_gradient,
                     .body = experts_body,
                     .routing = routing_of_experts,
                     .body_of_rows = body_of_rows};

Tensor experts(Tensor x, Tensor indices, Tensor gates, const Experts& w, Loc at) {
  return on_behalf_of("experts", at, [&] {
    TESSERA_REQUIRE(!w.up.empty() && w.up.size() == w.activations.size(),
                    "[experts] {} matrices 'up' and {} activations; each has one ({})", w.up.size(),
                    w.activations.size(), where(at));
    for (const std::string& function : w.activations) require_activation(function, at);
    TESSERA_REQUIRE(gates.shape() == indices.shape(),
                    "[experts] gates {} of indices {}; they have one shape ({})",
                    gates.shape().to_string(), indices.shape().to_string(), where(at));
    TESSERA_REQUIRE(indices.shape().has(w.choices) && !x.shape().has(w.choices),
                    "[experts] '{}' is a dim of the indices {} alone, and not of x {} ({})",
                    w.choices, indices.shape().to_string(), x.shape().to_string(), where(at));
    const Shape hidden = w.down.shape().without(x.shape().names()).without({w.dim});
    Tensors matrices = w.up;
    matrices.push_back(w.down);
    for (const Tensor& m : matrices) {
      const Shape model = m.shape().without({w.dim}).without(hidden.names());
      const auto is_like = [&](const Shape& one, const Shape& other) {
        return one.rank() == 1 && other.has(one[0].name) && other.dim(one[0].name) == one[0];
      };
      TESSERA_REQUIRE(
          m.shape().rank() == 3 && is_like(model, x.shape()) && is_like(hidden, m.shape()) &&
              m.shape().has(w.dim) && m.shape().dim(w.dim) == w.down.dim(w.dim),
          "[experts] a matrix is {} beside x {}, and down is {}; matrices have the dims '{}', "
          "one of x, and one that x lacks ({})",
          m.shape().to_string(), x.shape().to_string(), w.down.shape().to_string(), w.dim,
          where(at));
    }
    const int64_t rows = indices.shape().elements(), count = w.down.dim(w.dim).size;
    const double mean = static_cast<double>(rows) / static_cast<double>(count);
    TESSERA_REQUIRE(
        w.dispatch_capacity == 0 || w.dispatch_capacity >= 1,
        "[experts] dispatch_capacity {} is a bound below the mean: {} rows for {} experts are {:g} "
        "for "
        "each, of which {:g} would have places; give at least 1, or 0 for places for all rows "
        "({})",
        w.dispatch_capacity, rows, count, mean, std::max(0.0, w.dispatch_capacity * mean),
        where(at));
    Tensors in = {x, indices, narrow(gates, x.dtype()), w.down};
    in.insert(in.end(), w.up.begin(), w.up.end());
    const Attrs attrs = {
        {"dim", w.dim}, {"activations", w.activations}, {"dispatch_capacity", w.dispatch_capacity}};
    return x.graph().add(kExperts, in, attrs, at)[0];
  });
}

}  // namespace tessera
