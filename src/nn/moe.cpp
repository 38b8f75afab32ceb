// Without a capacity, tokens stay where they are: experts() computes the rows of each expert. With
// one, tensors with dims of groups and of experts are laid out by group, then by expert after
// dispatch, then by group again. Each change of preference is an all_to_all if the rules give both
// dims the same axis.
#include <cmath>

#include "base/fail.h"
#include "nn/stored.h"
#include "tessera/nn_moe.h"

namespace tessera::nn {

namespace {
Tensor with_embedding(Tensor seen, const std::string& model, const MoeOptions& o, Loc at) {
  const bool appended = o.embedded == Embedded::appended;
  const Shape &a = seen.shape(), &b = o.embedding.shape();
  TESSERA_REQUIRE(appended ? b.has(model) && b.without({model}) == a.without({model}) : b == a,
                  "[moe] the embedding {} beside x {}; it has the same dims{} ({})", b.to_string(),
                  a.to_string(), appended ? ", of the same sizes but '" + model + "'" : "",
                  where(at));
  Tensor embedding = read_as(o.embedding, seen.dtype());
  if (o.embedded == Embedded::alone) return embedding;
  return appended ? concat({seen, embedding}, model, at) : add(seen, embedding, at);
}

void require_numbers(const MoeOptions& o, Loc at) {
  TESSERA_REQUIRE(o.bias_step >= 0 && std::isfinite(o.bias_step),
                  "[moe] bias_step {}; it is positive and finite, or 0 for no bias ({})",
                  o.bias_step, where(at));
  TESSERA_REQUIRE(
      o.balance >= 0 && o.z >= 0 && std::isfinite(o.balance) && std::isfinite(o.z),
      "[moe] weights of the losses: balance {} and z {}; each is positive and finite, or 0 for "
      "no such loss ({})",
      o.balance, o.z, where(at));
  TESSERA_REQUIRE(std::isfinite(o.routing.scale),
                  "[moe] the gates have the scale {}; it is finite ({})", o.routing.scale,
                  where(at));
}

void add_with_capacity(Moe& result, Tensor x, Tensor logits, const std::string& model,
                       const MoeOptions& o, Loc at) {
  Tensor inputs;
  {
    PreferScope prefer(x.graph(), logits);
    result.routing = route(logits, o.tokens, o.experts.name, o.routing, at);
    const Shape& places = result.routing.dispatch.shape();
    std::vector<Dim> dims = {o.experts};
    for (const Dim& d : x.shape().without({model, o.tokens})) dims.push_back(d);
    dims.push_back(places[places.rank() - 1]);
    dims.push_back(x.dim(model));
    inputs = einsum({x, read_as(result.routing.dispatch, x.dtype())}, Shape(dims), at);
  }
  inputs = inputs.prefer(o.experts.name, at);
  Tensor outputs;
  {
    PreferScope prefer(x.graph(), inputs);
    FeedForwardOptions expert = o.expert;
    expert.dense.stacked.push_back(o.experts.name);
    outputs = feed_forward(inputs, "expert", model, o.hidden, expert, at);
  }
  outputs = outputs.prefer(outputs.shape().without({o.experts.name}).names(), at);
  result.y = einsum({outputs, read_as(result.routing.combine, x.dtype())}, x.shape(), at);
}

void add_dropless(Moe& result, Tensor x, Tensor logits, const std::string& model,
                  const MoeOptions& o, const RoutingOptions& routing, Loc at) {
  {
    PreferScope prefer(x.graph(), logits);
    result.routing = choose(logits, o.tokens, o.experts.name, routing, at);
  }
  const DenseOptions& dense = o.expert.dense;
  TESSERA_REQUIRE(
      !dense.bias && o.expert.dropout == 0 && !dense.float8 && dense.lora.rank == 0 &&
          dense.activations.empty(),
      "[moe] experts with biases, dropout, adapters, float8 matmuls or activations behind "
      "products have a capacity; set dropless to false ({})",
      where(at));
  Scope scope(x.graph(), "expert");
  const Dim width = x.dim(model);
  Experts weights;
  weights.dim = o.experts.name;
  weights.activations = o.expert.activations;
  weights.dispatch_capacity = o.dispatch_capacity;
  const auto matrix = [&](const std::string& name, const Dim& from, const Dim& to) {
    const Initializer init = dense.init ? dense.init : scaled_normal({from.name}, dense.gain);
    return parameter_for(x, name + ".w", {o.experts, from, to}, init, at);
  };
  for (size_t i = 0; i < weights.activations.size(); ++i) {
    const bool alone = weights.activations.size() == 1;
    weights.up.push_back(matrix(alone ? "up" : fmt::format("up{}", i), width, o.hidden));
  }
  weights.down = matrix("down", o.hidden, width);
  result.y = experts(x, result.routing.indices, result.routing.gates, weights, at);
}
}  // namespace

Moe moe(Tensor x, const std::string& name, const std::string& model, const MoeOptions& o, Loc at) {
  return on_behalf_of("moe", at, [&]() -> Moe {
    Graph& g = x.graph();
    Scope scope(g, name);
    require_numbers(o, at);
    TESSERA_REQUIRE(!x.shape().has(o.experts.name), "[moe] x {} has the dim '{}' already ({})",
                    x.shape().to_string(), o.experts.name, where(at));
    const Axes outside(x.shape().without({model}).names());
    Tensor seen = o.input_jitter != 0 ? jitter(x, o.input_jitter, at) : x;
    if (o.input_dropout != 0) seen = dropout(seen, o.input_dropout, at);
    if (!o.embedding.empty()) seen = with_embedding(seen, model, o, at);
    DenseOptions linear;
    linear.bias = false;
    Tensor logits =
        dense(seen, "router", {model}, Shape{o.experts}, linear, at).prefer(outside, at);
    Moe result;
    const bool drops = !o.dropless || o.routing.gating != Gating::tokens_choose;
    RoutingOptions routing = o.routing;
    Tensor bias;
    if (o.bias_step != 0) {
      TESSERA_REQUIRE(
          o.routing.bias.empty() && !drops,
          "[moe] bias_step {}{}; it moves a bias of its own, without a capacity: set bias_step "
          "to 0, or {} ({})",
          o.bias_step, drops ? " with a capacity" : " and a bias of the routing",
          drops ? "let tokens choose and set dropless" : "leave the routing's bias empty",
          where(at));
      bias = routing.bias = g.state("router.bias", Shape{o.experts}, zeros(), DType::float32, at);
    }
    if (drops) {
      add_with_capacity(result, x, logits, model, o, at);
    } else {
      add_dropless(result, x, logits, model, o, routing, at);
    }
    if (o.bias_step != 0) {
      const Tensor loads = cast(stop_gradient(result.routing.loads), DType::float32, at);
      const Tensor excess = loads - reduce_mean(loads, o.experts.name, at);
      const Tensor none = constant(g, 0, DType::float32), step = none + o.bias_step;
      const Tensor down = where(excess > 0.0, neg(step), none, at);
      g.update(bias, bias + where(excess < 0.0, step, down, at), at);
    }
    if (!o.shared.empty()) {
      TESSERA_REQUIRE(
          o.shared.size() == 1,
          "[moe] {} shared dims; there is at most one shared expert, with one hidden dim ({})",
          o.shared.size(), where(at));
      TESSERA_REQUIRE(
          o.shared[0].name != o.hidden.name,
          "[moe] the shared expert and the others have the hidden dim '{}'; give the shared one "
          "another name ({})",
          o.hidden.name, where(at));
      result.y = add(result.y, feed_forward(x, "shared", model, o.shared[0], o.expert, at), at);
    }
    result.loss = result.routing.balance * o.balance;
    if (o.z > 0) result.loss = result.loss + result.routing.z * o.z;
    return result;
  });
}

}  // namespace tessera::nn
