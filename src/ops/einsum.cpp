// einsum: a sum of products over named dims. The front end reduces any number of operands to binary
// contractions: dims that only one operand has are summed first; then the pair with the smallest
// result is contracted until one tensor is left. The binary op has factors by name, which gives its
// sharding.
#include <algorithm>

#include "base/misspelt.h"
#include "ir/emit.h"
#include "ir/source_ops.h"
#include "ops/infer.h"
#include "ops/precision.h"
#include "ops/sum_to.h"
#include "tessera/ops.h"

namespace tessera {

extern const Op kEinsum;

namespace {

std::vector<ValueType> infer_einsum(const OpCall& call) {
  require_number(call.in[0].dtype);
  require_same_dtype(call);
  require_same_sizes(call);
  const int dims = call.in[0].shape.united(call.in[1].shape).rank();
  TESSERA_REQUIRE(dims <= Shape::kMostDims, "a contraction over {} dims; at most {} are supported",
                  dims, Shape::kMostDims);
  return {{shape_of(call.attrs), call.in[0].dtype}};
}

void emit_matmul(EmitCall& call) {
  using namespace matmul_kinds;
  MatmulSpec spec;
  auto has = [&](const std::vector<std::vector<int>>& dims, int f) {
    return std::any_of(dims.begin(), dims.end(), [&](const auto& d) { return d[0] == f; });
  };
  for (int f : all_factors(call)) {
    const bool a = has(call.space.in[0], f), b = has(call.space.in[1], f),
               c = has(call.space.out[0], f);
    spec.kinds.push_back(!c ? kSum : a && b ? kBatch : a ? kRow : kColumn);
  }
  emit_aligned(call);
  spec.float8 = call.call.attrs.get<std::vector<int64_t>>("float8", {});
  call.step.spec = std::move(spec);
}

int64_t matmul_flops(const OpCall& call) {
  return 2 * call.in[0].shape.united(call.in[1].shape).elements();
}

std::vector<Tensor> einsum_gradient(const GradCall& c) {
  return {sum_of_products({c.grads[0], c.in[1]}, c.in[0].shape()),
          sum_of_products({c.grads[0], c.in[0]}, c.in[1].shape())};
}

Shape ordered_like(const Shape& shape, const Shape& order) {
  std::vector<Dim> dims;
  for (const Dim& d : order) {
    if (shape.has(d.name)) dims.push_back(d);
  }
  for (const Dim& d : shape) {
    if (!order.has(d.name)) dims.push_back(d);
  }
  return Shape(dims);
}

/// The dims of a and b that are still needed: in `out` or in another operand.
Shape pair_shape(const std::vector<Tensor>& xs, size_t a, size_t b, const Shape& out) {
  std::vector<Dim> kept;
  for (const Dim& d : xs[a].shape().united(xs[b].shape())) {
    bool needed = out.has(d.name);
    for (size_t k = 0; k < xs.size(); ++k) needed |= k != a && k != b && xs[k].shape().has(d.name);
    if (needed) kept.push_back(d);
  }
  return ordered_like(Shape(kept), out);
}

/// The number of elements of pair_shape() as a double, which cannot overflow.
double pair_size(const std::vector<Tensor>& xs, size_t a, size_t b, const Shape& out) {
  double size = 1;
  for (size_t i : {a, b}) {
    for (const Dim& d : xs[i].shape()) {
      bool needed = out.has(d.name);
      for (size_t k = 0; k < xs.size(); ++k)
        needed |= k != a && k != b && xs[k].shape().has(d.name);
      if (needed && (i == a || !xs[a].shape().has(d.name))) size *= static_cast<double>(d.size);
    }
  }
  return size;
}

Tensor contract_pair(Tensor a, Tensor b, const Shape& out, Loc at) {
  if (a.shape().united(b.shape()).rank() == out.rank()) {
    Tensor product = mul(a, b, at);
    return product.shape() == out ? product : transpose(product, out, at);
  }
  return one(kEinsum, {a, b}, source_attrs(out, a.dtype()), at);
}

void check_operands(const std::vector<Tensor>& xs, const Shape& out, Loc at) {
  TESSERA_REQUIRE(!xs.empty(), "[einsum] there are no operands ({})", where(at));
  std::vector<ValueType> types;
  for (const Tensor& x : xs) types.push_back({x.shape(), x.dtype()});
  const Attrs attrs;
  const OpCall call{kEinsum, types, types, attrs};
  try {
    require_same_dtype(call);
    require_same_sizes(call);
    for (const Dim& d : out) {
      for (size_t i = 0; i < xs.size(); ++i) {
        if (!xs[i].shape().has(d.name)) continue;
        const Dim& own = xs[i].dim(d.name);
        TESSERA_REQUIRE(
            own == d,
            "dim '{}' is {} in operand {} but {} in the result; dims of one name must agree",
            d.name, size_text(own, d), i, size_text(d, own));
      }
    }
  } catch (const Error& e) {
    const std::string& scope = xs[0].graph().scope();
    throw Error(e.kind(), fmt::format("[einsum] {} ({}{}{})", e.what(), where(at),
                                      scope.empty() ? "" : ", ", scope));
  }
}

}  // namespace

extern const Op kEinsum = {.name = "einsum",
                           .infer = infer_einsum,
                           .linear = {1u, 2u},
                           .gradient = einsum_gradient,
                           .flops = matmul_flops,
                           .kernel = KernelKind::matmul,
                           .emit = emit_matmul};

namespace {

/// The dims of operand i that neither `out` nor another operand has.
std::vector<std::string> dims_alone(const std::vector<Tensor>& xs, size_t i, const Shape& out) {
  std::vector<std::string> alone;
  for (const Dim& d : xs[i].shape()) {
    bool elsewhere = out.has(d.name);
    for (size_t k = 0; k < xs.size(); ++k) elsewhere |= k != i && xs[k].shape().has(d.name);
    if (!elsewhere) alone.push_back(d.name);
  }
  return alone;
}

/// A dim that one of several operands has alone and that is summed is a mistyped name more often
/// than meant.
void require_shared(const std::vector<Tensor>& xs, const Shape& out, Loc at) {
  for (size_t i = 0; xs.size() > 1 && i < xs.size(); ++i) {
    const std::vector<std::string> alone = dims_alone(xs, i, out);
    if (alone.empty()) continue;
    Shape known = out;
    for (size_t k = 0; k < xs.size(); ++k) {
      if (k != i) known = known.united(xs[k].shape());
    }
    fail(ErrorKind::usage,
         "dim '{0}' is in operand {1} {2} alone, neither in another operand nor in the result {3}"
         "{4}; if it is to be summed, say so: reduce_sum(x, \"{0}\") ({5})",
         alone[0], i, xs[i].shape().to_string(), out.to_string(),
         suggestion(alone[0], known.names()), where(at));
  }
}

/// A dim that is summed beside one that is broadcast, one letter apart, is a mistyped one.
void require_spelt_result(const std::vector<Tensor>& xs, const Shape& out) {
  Shape all;
  for (const Tensor& x : xs) all = all.united(x.shape());
  const auto pair = misspelt_pair(all, out);
  TESSERA_REQUIRE(
      !pair,
      "the result {} has the dim '{}', which no operand has, and '{}' of the operands would be "
      "summed; give them one name, or sum and broadcast() in steps of their own if it is meant",
      out.to_string(), pair ? pair->second.name : "", pair ? pair->first.name : "");
}

}  // namespace

Tensor sum_of_products(const std::vector<Tensor>& operands, const Shape& out, Loc at) {
  return on_behalf_of("einsum", at, [&] {
    check_operands(operands, out, at);
    std::vector<Tensor> xs = operands;
    for (size_t i = 0; i < xs.size(); ++i) {
      const std::vector<std::string> alone = dims_alone(xs, i, out);
      if (!alone.empty()) xs[i] = reduce_sum(xs[i], alone, at);
    }
    while (xs.size() > 1) {
      size_t best_a = 0, best_b = 1;
      double best = -1;
      for (size_t a = 0; a < xs.size(); ++a) {
        for (size_t b = a + 1; b < xs.size(); ++b) {
          const double size = pair_size(xs, a, b, out);
          if (best < 0 || size < best) best = size, best_a = a, best_b = b;
        }
      }
      Tensor result =
          contract_pair(xs[best_a], xs[best_b], pair_shape(xs, best_a, best_b, out), at);
      xs[best_a] = result;
      xs.erase(xs.begin() + static_cast<std::ptrdiff_t>(best_b));
    }
    return xs[0].shape() == out ? xs[0] : sum_to(xs[0], out);
  });
}

Tensor einsum(const std::vector<Tensor>& xs, const Shape& out, Loc at) {
  const bool is_users = is_users_call(at);
  return on_behalf_of("einsum", at, [&] {
    check_operands(xs, out, at);
    require_shared(xs, out, at);
    if (is_users) require_spelt_result(xs, out);
    return sum_of_products(xs, out, at);
  });
}

Tensor einsum_of_float8(const Tensor& a, const Tensor& b, const Shape& out, Float8 of_a,
                        Float8 of_b, Loc at) {
  check_operands({a, b}, out, at);
  if (a.shape().united(b.shape()).rank() == out.rank()) return contract_pair(a, b, out, at);
  Attrs attrs = source_attrs(out, a.dtype());
  attrs.set("float8", std::vector<int64_t>{static_cast<int64_t>(of_a), static_cast<int64_t>(of_b)});
  return one(kEinsum, {a, b}, attrs, at);
}

Tensor einsum(const std::vector<Tensor>& xs, std::initializer_list<Dim> out, Loc at) {
  const Shape shape = on_behalf_of("einsum", at, [&] { return Shape(out); });
  return einsum(xs, shape, at);
}

Tensor einsum(const std::vector<Tensor>& xs, Loc at) {
  return on_behalf_of("einsum", at, [&]() -> Tensor {
    TESSERA_REQUIRE(!xs.empty(), "[einsum] there are no operands ({})", where(at));
    std::vector<Dim> out;
    const auto with_dims =
        std::count_if(xs.begin(), xs.end(), [](const Tensor& x) { return x.shape().rank() > 0; });
    for (size_t i = 0; i < xs.size(); ++i) {
      bool shares = with_dims == 1 || xs[i].shape().rank() == 0;
      for (const Dim& d : xs[i].shape()) {
        int uses = 0;
        for (const Tensor& x : xs) uses += x.shape().has(d.name);
        shares |= uses > 1;
        const bool seen =
            std::any_of(out.begin(), out.end(), [&](const Dim& o) { return o.name == d.name; });
        if (uses == 1 && !seen) out.push_back(d);
      }
      TESSERA_REQUIRE(
          shares,
          "operand {} {} shares no dim with the others; if an outer product is meant, name the "
          "dims of the result: einsum(xs, {{...}}) ({})",
          i, xs[i].shape().to_string(), where(at));
    }
    return einsum(xs, Shape(out), at);
  });
}

}  // namespace tessera
