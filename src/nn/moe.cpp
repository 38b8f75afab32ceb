// Tensors with dims of groups and of experts are laid out by group, then by expert after dispatch,
// then by group again. Each change of preference is an all_to_all if the rules give both dims the
// same axis.
#include "base/fail.h"
#include "nn/stored.h"
#include "tessera/nn_moe.h"

namespace tessera::nn {

namespace {
Tensor with_embedding(Tensor seen, const std::string& model, const MoeOptions& o, Loc at) {
  const bool appended = o.embedded == Embedded::appended;
  const Shape &a = seen.shape(), &b = o.embedding.shape();
  require(appended ? b.has(model) && b.without({model}) == a.without({model}) : b == a,
          "[moe] the embedding {} beside x {}; it has the same dims{} ({})", b.to_string(),
          a.to_string(), appended ? ", of the same sizes but '" + model + "'" : "", where(at));
  Tensor embedding = read_as(o.embedding, seen.dtype());
  if (o.embedded == Embedded::alone) return embedding;
  return appended ? concat({seen, embedding}, model, at) : add(seen, embedding, at);
}
}  // namespace

Moe moe(Tensor x, const std::string& name, const std::string& model, const MoeOptions& o, Loc at) {
  return on_behalf_of("moe", at, [&]() -> Moe {
    Graph& g = x.graph();
    Scope scope(g, name);
    require(!x.shape().has(o.experts.name), "[moe] x {} has the dim '{}' already ({})",
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
    Tensor inputs;
    {
      PreferScope prefer(g, logits);
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
      PreferScope prefer(g, inputs);
      FeedForwardOptions expert = o.expert;
      expert.dense.stacked.push_back(o.experts.name);
      outputs = feed_forward(inputs, "expert", model, o.hidden, expert, at);
    }
    outputs = outputs.prefer(outputs.shape().without({o.experts.name}).names(), at);
    result.y = einsum({outputs, read_as(result.routing.combine, x.dtype())}, x.shape(), at);
    result.loss = result.routing.balance * o.balance;
    if (o.z > 0) result.loss = result.loss + result.routing.z * o.z;
    return result;
  });
}

}  // namespace tessera::nn
