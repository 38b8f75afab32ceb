// The feed-forward layers of a transformer's blocks: one for all tokens, or experts that tokens
// choose.
#include "base/fail.h"
#include "nn/stored.h"
#include "nn/transformer_parts.h"

namespace tessera::nn {

namespace {

const char* name_of(Activation function) {
  switch (function) {
    case Activation::relu:
      return "relu";
    case Activation::gelu_tanh:
      return "gelu";
    case Activation::silu:
      return "silu";
    case Activation::gelu:
      break;
  }
  return "gelu_erf";
}

}  // namespace

Tensor activate(Tensor x, Activation function, Loc at) {
  return activate(x, name_of(function), at);
}

namespace {

Tensor experts_layer(Tensor x, const TransformerOptions& o, Loc at) {
  const Dim dim("experts", o.mlp.experts), model = x.dim("d_model"), ff("ff", o.mlp.ff);
  Tensor logits = dense(x, "router", {"d_model"}, Shape{dim}, false, 1, at);
  logits = logits.prefer(x.shape().without({"d_model"}).names(), at);
  RoutingOptions routing;
  routing.choices = o.mlp.choices;
  routing.renormalize = o.mlp.renormalize;
  routing.scores = o.mlp.scores;
  routing.scale = o.mlp.scale;
  routing.groups = o.mlp.groups;
  routing.best_groups = o.mlp.best_groups;
  if (o.mlp.choice_bias)
    routing.bias =
        x.graph().parameter("router.bias", Shape{dim}, zeros(), stored_dtype(x.dtype()), at);
  Routing chosen;
  {
    PreferScope prefer(x.graph(), logits);
    chosen = choose(logits, logits.shape()[0].name, "experts", routing, at);
  }
  // choose() leaves a single gate as it is; divided by its sum it is 1.
  if (routing.renormalize && routing.choices == 1)
    chosen.gates = ones_like(chosen.gates, at) * routing.scale;
  const auto matrix = [&](const char* name, const Dim& from, const Dim& to, double gain) {
    const std::string full = std::string("expert.") + name;
    Tensor w = parameter_for(x, full + ".w", {dim, from, to}, scaled_normal({from.name}, gain), at);
    // Only where they are named: the product of their LoRA matrices is as large as they are.
    return o.lora.targets.empty() ? w : adapted(w, x, full, {from.name}, o.lora, {dim.name}, at);
  };
  Experts weights;
  weights.dispatch_capacity = o.mlp.dispatch_capacity;
  const Tensor up = matrix("up", model, ff, 1);
  weights.up = {up};
  weights.activations = {name_of(o.mlp.activation)};
  if (o.mlp.gated) {
    weights.up = {matrix("gate", model, ff, 1), up};
    weights.activations.push_back("linear");
  }
  weights.down = matrix("down", ff, model, residual_gain(o));
  return experts(x, chosen.indices, chosen.gates, weights, at);
}

Tensor dense_mlp(Tensor x, const TransformerOptions& o, int64_t width, Loc at) {
  const Shape ff{Dim("ff", width)};
  Tensor hidden = projected(x, "up", {"d_model"}, ff, o, o.mlp.bias, at);
  if (o.mlp.gated) {
    Tensor gate = projected(x, "gate", {"d_model"}, ff, o, o.mlp.bias, at);
    hidden = mul(activate(gate, o.mlp.activation, at), hidden, at);
  } else {
    hidden = activate(hidden, o.mlp.activation, at);
  }
  return projected(hidden, "down", {"ff"}, Shape{x.dim("d_model")}, o, o.mlp.bias, at,
                   residual_gain(o));
}

}  // namespace

Tensor mlp_layer(Tensor x, const TransformerOptions& o, Loc at) {
  return on_behalf_of("mlp_layer", at, [&]() -> Tensor {
    Scope scope(x.graph(), "mlp");
    if (o.mlp.experts == 0) return dense_mlp(x, o, o.mlp.ff, at);
    Tensor y = experts_layer(x, o, at);
    if (o.mlp.shared_ff == 0) return y;
    Scope shared(x.graph(), "shared");
    return add(y, dense_mlp(x, o, o.mlp.shared_ff, at), at);
  });
}

}  // namespace tessera::nn
