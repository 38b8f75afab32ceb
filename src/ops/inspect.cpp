// print and check_finite. The compile half treats both as copies of x, which fuse away. A Session
// finds the nodes and reads x (print) or the index of its first non-finite element (check_finite).
// That index is an ordinary reduction: correct under every layout, the same on all ranks, cheap.
#include "ir/loop.h"
#include "ir/source_ops.h"
#include "ops/infer.h"
#include "program/program.h"
#include "tessera/ops.h"

namespace tessera {

namespace {

std::vector<ValueType> infer_first(const OpCall& call) { return {call.in[0]}; }

std::vector<Tensor> pass_first(const GradCall& call) {
  std::vector<Tensor> grads(call.in.size());
  grads[0] = call.grads[0];
  return grads;
}

/// Row-major logical index of each element of x.
Tensor position_of(Tensor x, Loc at) {
  Graph& g = x.graph();
  Tensor position = constant(g, 0, DType::float64, {}, at);
  int64_t stride = x.shape().elements();
  for (const Dim& d : x.shape()) {
    stride /= d.size;
    Tensor along = cast(iota(g, d, DType::int64, at), DType::float64, at);
    Tensor factor = constant(g, static_cast<double>(stride), DType::float64, {}, at);
    position = add(position, mul(along, factor, at), at);
  }
  return position;
}

}  // namespace

extern const Op kPrint = {.name = "print",
                          .infer = infer_first,
                          .linear = {1u},
                          .gradient = pass_first,
                          .pointwise = true,
                          .code = PointwiseOp::copy,
                          .keeps_elements = true};
extern const Op kCheckFinite = {.name = "check_finite",
                                .infer = infer_first,
                                .linear = {1u},
                                .gradient = pass_first,
                                .pointwise = true,
                                .code = PointwiseOp::copy,
                                .keeps_elements = true};

namespace {
void require_outside_loops(Tensor x, const char* what, Loc at) {
  TESSERA_REQUIRE(
      open_loop(x.graph()) < 0,
      "[{}] '{}' is made by each iteration of a loop; return it from the iterations, stacked, "
      "and look at it outside ({})",
      what, x.name(), where(at));
}
}  // namespace

Tensor print(Tensor x, const std::string& label, Loc at) {
  return on_behalf_of("print", at, [&] {
    require_outside_loops(x, "print", at);
    return one(kPrint, {x}, {{"label", label}}, at);
  });
}

Tensor check_finite(Tensor x, const std::string& label, Loc at) {
  return on_behalf_of("check_finite", at, [&] {
    TESSERA_REQUIRE(is_floating(x.dtype()),
                    "[check_finite] '{}' is {}; only floating tensors can be not finite"
                    " ({})",
                    x.name(), to_string(x.dtype()), where(at));
    require_outside_loops(x, "check_finite", at);
    Graph& g = x.graph();
    Tensor none = constant(g, kAllFinite, DType::float64, {}, at);
    Tensor bad = where(is_finite(x, at), none, position_of(x, at), at);
    if (bad.shape().rank() > 0) bad = reduce_min(bad, bad.shape().names(), at);
    bad = bad.uniquely_named("check_finite_index");
    return one(g, kCheckFinite, {x, bad}, {{"label", label}}, at);
  });
}

}  // namespace tessera
