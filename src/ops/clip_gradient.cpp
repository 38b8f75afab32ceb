// The identity, with a gradient that is scaled down where its root mean square exceeds a limit.
#include "ops/infer.h"
#include "tessera/ops.h"

namespace tessera {

namespace {

std::vector<Tensor> clipped_gradient(const GradCall& c) {
  Tensor g = c.grads[0], one = constant(c.graph, 1, g.dtype());
  Tensor excess = sqrt(mean_all(square(g))) / c.attrs.get<double>("limit");
  return {g / maximum(excess, one)};
}

}  // namespace

extern const Op kClipGradient = {
    .name = "clip_gradient",
    .infer = [](const OpCall& call) -> std::vector<ValueType> { return {call.in[0]}; },
    .gradient = clipped_gradient,
    .body = [](const std::vector<Tensor>& in, const Attrs&) -> std::vector<Tensor> {
      return {identity(in[0])};
    }};

Tensor clip_gradient(Tensor x, double limit, Loc at) {
  return on_behalf_of("clip_gradient", at, [&] {
    TESSERA_REQUIRE(limit > 0, "[clip_gradient] limit {}; it must be positive ({})", limit,
                    where(at));
    return one(kClipGradient, {x}, {{"limit", limit}}, at);
  });
}

}  // namespace tessera
