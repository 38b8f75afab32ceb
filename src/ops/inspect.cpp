// print and check_finite. The compile half treats both as copies of x, which fuse away. A Session
// finds the nodes and reads x (print) or the index of its first non-finite element (check_finite).
// That index is an ordinary reduction: correct under every layout, the same on all ranks, cheap.
// Iterations of a loop stack their x, and one node behind the loop sees it, with the loop's dim in
// front.
#include "ir/loop_builder.h"
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

/// Calls look(x, ran) outside of all loops, with what their iterations make stacked: x, and `ran`,
/// 1 where an iteration ran (empty: there is no loop). Returns x.
Tensor seen(Tensor x, Tensor ran, const std::function<Tensor(Tensor x, Tensor ran)>& look, Loc at) {
  Graph& g = x.graph();
  const int loop = open_loop(g);
  if (loop < 0) return look(x, ran);
  const Tensor mine = identity(x, at),
               runs = ran.empty() ? constant(g, 1, DType::uint8, {}, at) : ran;
  const std::string over = loops_of(g)[static_cast<size_t>(loop)].over.name;
  std::string other = over;  // what is stacked has the loop's dim in front
  while (mine.shape().has(other)) other = "_" + other;
  const Tensor slice = other == over ? mine : rename(mine, over, other, at);
  GraphInternals& internals = GraphInternals::of(g);
  internals.loops[static_cast<size_t>(loop)].behind.emplace_back(
      [&g, loop, slice, runs, look, at, line = g.producer(mine.id()).at] {
        const LineScope scope(g, line);
        const auto stacked = [&](Tensor of) {
          return add_loop_result(g, loop, of, Loop::Result::stack);
        };
        seen(stacked(slice), stacked(runs), look, at);
      });
  return x;
}

}  // namespace

Tensor print(Tensor x, const std::string& label, Loc at) {
  return on_behalf_of("print", at, [&] {
    const Attrs attrs = {{"label", label}, {"of", x.name()}};
    return seen(
        x, {},
        [=](Tensor all, Tensor ran) {
          return ran.empty() ? one(kPrint, {all}, attrs, at) : one(kPrint, {all, ran}, attrs, at);
        },
        at);
  });
}

Tensor check_finite(Tensor x, const std::string& label, Loc at) {
  return on_behalf_of("check_finite", at, [&] {
    TESSERA_REQUIRE(is_floating(x.dtype()),
                    "[check_finite] '{}' is {}; only floating tensors can be not finite"
                    " ({})",
                    x.name(), to_string(x.dtype()), where(at));
    const Attrs attrs = {{"label", label}, {"of", x.name()}};
    return seen(
        x, {},
        [=](Tensor all, Tensor) {
          Graph& g = all.graph();
          Tensor none = constant(g, kAllFinite, DType::float64, {}, at);
          Tensor bad = where(is_finite(all, at), none, position_of(all, at), at);
          if (bad.shape().rank() > 0) bad = reduce_min(bad, bad.shape().names(), at);
          bad = bad.uniquely_named("check_finite_index");
          return one(g, kCheckFinite, {all, bad}, attrs, at);
        },
        at);
  });
}

}  // namespace tessera
