// The rarer layers of mesh_tensorflow_layers.h, in a few lines each.
#include "mesh_tensorflow/layers.h"

namespace tessera::test {

namespace {

const Dim batch("batch", 2), heads("heads", 2), length("length", 5), memory("memory_length", 5),
    model("model", 6), d_head("d_head", 4);

Tensor parameter(const MtfInputs& x, const std::string& name, const Shape& shape) {
  return x.graph.parameter(name, shape, nn::zeros());
}

/// Three taps that sum to one, for this position and the two before. Each is that of channel 0
/// again for channel 3.
MtfBuild convolution(bool dynamic) {
  return [=](const MtfInputs& in) {
    const Dim once("once", 3), twice("twice", 2), wide("d_model", 6);
    Tensor x = in("x"), known = nn::nonzero_weights(in("tokens")), sum;
    std::vector<Tensor> taps;
    for (const std::string name : {"tap0", "tap1", "tap2"}) {
      taps.push_back(dynamic ? nn::dense(x, name, {"d_model"}, Shape{once})
                             : parameter(in, name + ".w", Shape{once}));
    }
    Tensor weights = softmax(stack(taps, "taps"), "taps");
    x = reshape(x * known, {batch, length, twice, once});
    const std::vector<Tensor> each = unstack(weights, "taps");
    for (int64_t k = 0; k < 3; ++k) {
      Tensor part = shift(x, "length", 2 - k) * each[k];
      sum = sum.empty() ? part : sum + part;
    }
    Tensor y = reshape(transpose(sum, {batch, length, twice, once}), {batch, length, wide});
    y = y + parameter(in, "bias", Shape{wide});
    return tanh(nn::dense(y, "out", {"d_model"}, Shape{Dim("out", 8)}));
  };
}

void add_synthesizers(MtfRows& rows) {
  rows["synthesizer_random"] = [](const MtfInputs& x) {
    Tensor logits = parameter(x, "logits", {length, heads, memory});
    return einsum({softmax(logits, "memory_length"), x("v")}, {batch, length, heads, d_head});
  };
  rows["synthesizer_dense"] = [](const MtfInputs& x) {
    Tensor logits = nn::dense(relu(x("q")), "pi", {"d_head"}, Shape{memory}, false);
    return einsum({softmax(logits, "memory_length"), x("v")}, {batch, heads, length, d_head});
  };
  // Weights that are normalized over queries before they are over keys, and the usual ones.
  rows["hybrid_attention"] = [](const MtfInputs& x) {
    Tensor share = clip(parameter(x, "share", {}), 0, 1);
    Tensor logits = einsum({x("q"), x("k")}, {batch, heads, length, memory});
    Tensor twice = softmax(log_softmax(logits, "length"), "memory_length");
    Tensor weights = share * twice + (1.0 - share) * softmax(logits, "memory_length");
    return einsum({weights, x("v")}, {batch, heads, length, d_head});
  };
}

nn::MultiHeadOptions two_heads() {
  nn::MultiHeadOptions o;
  o.heads = 2;
  o.d_head = 4;
  o.attention.scale = 1;
  return o;
}

void add_heads(MtfRows& rows) {
  rows["bilinear_attention"] = [](const MtfInputs& x) {
    const Dim three("heads", 3), other("_model", 6);
    Tensor seen = rename(x("x"), "length", "memory_length");
    Tensor q = einsum({x("x"), parameter(x, "query.w", {model, three, other})},
                      {batch, length, three, other});
    AttentionOptions o;
    o.key_dim = "_model";
    o.scale = 1;
    o.causal = true;
    Tensor keys = rename(seen, "model", "_model");
    Tensor y = rename(attention(q, keys, keys, {}, o), "_model", "model");
    return rename(einsum({y, parameter(x, "out.w", {three, model, other})}, {batch, length, other}),
                  "_model", "model");
  };
  // A feed-forward layer for the output of each head, with a share of each before and after.
  rows["branched_attention"] = [](const MtfInputs& x) {
    const Shape qkv{heads, d_head}, shares{heads};
    Tensor seen = rename(x("x"), "length", "memory_length");
    AttentionOptions o;
    o.scale = 1;
    Tensor y = attention(nn::dense(x("x"), "layer.query", {"model"}, qkv, false),
                         nn::dense(seen, "layer.key", {"model"}, qkv, false),
                         nn::dense(seen, "layer.value", {"model"}, qkv, false), {}, o);
    y = einsum({y, parameter(x, "out", {heads, d_head, model})}, {batch, length, heads, model});
    nn::FeedForwardOptions mlp;
    mlp.dense.bias = false;
    y = nn::feed_forward(y * parameter(x, "kappa", shares), "mlp", "model", Dim("ff", 8), mlp);
    return reduce_sum(y * parameter(x, "alpha", shares), "heads");
  };
  rows["encdec_attention"] = [](const MtfInputs& x) {
    return nn::multihead_attention(x("x"), x("memory"), "layer", "model", two_heads());
  };
  rows["transparent_attention"] = [](const MtfInputs& x) {
    std::vector<Tensor> outputs = {x("module0"), x("module1"), x("module2")};
    Tensor mix = parameter(x, "mix", {Dim("modules", 3), Dim("decoders", 2)});
    Tensor seen = einsum({softmax(mix, "modules"), stack(outputs, "modules")},
                         {Dim("decoders", 2), batch, Dim("length", 3), model});
    seen = rename(unstack(seen, "decoders")[1], "length", "memory_length");
    return nn::multihead_attention(x("x"), seen, "layer", "model", two_heads());
  };
  rows["contextual_bias"] = [](const MtfInputs& x) {
    const Dim buckets("relative_buckets", 8);
    Tensor of_query = einsum({x("q"), parameter(x, "values", {heads, d_head, buckets})},
                             {batch, heads, length, buckets});
    Tensor bucket = nn::relative_buckets(x.graph, length, memory, {8, 128, true});
    return gather(of_query, bucket, "relative_buckets");
  };
}

/// What a group of experts gets is routed again, by a router of its own.
MtfResults in_two_levels(const MtfInputs& x) {
  const Dim outer("outer", 3), inner("inner", 2), in("model", 5), ff("ff", 6), c("places", 2),
      d("inner_places", 2), t("token", 4);
  nn::RoutingOptions o;
  o.capacity = {c};
  const nn::Routing first = nn::route(
      nn::dense(x("x"), "outer_router", {"model"}, Shape{outer}, false), "length", "outer", o);
  Tensor tokens = einsum({x("x"), first.dispatch}, {outer, batch, c, in});
  Tensor weight = reduce_sum(first.combine, {"length"});
  weight = transpose(weight, {outer, batch, c});
  Tensor importance =
      (cast(weight > 0.5, DType::float32) + cast(weight > 0.0, DType::float32)) * 0.5;
  Tensor again = reshape(tokens, {outer, t, in});
  o.importance = reshape(importance, {outer, t});
  o.capacity = {d};
  nn::DenseOptions router;
  router.bias = false;
  router.stacked = {"outer"};
  const nn::Routing second = nn::route(
      nn::dense(again, "inner_router", {"model"}, Shape{inner}, router), "token", "inner", o);
  Tensor y = einsum({again, second.dispatch}, {inner, outer, d, in});
  y = relu(einsum({y, parameter(x, "up.w", {inner, outer, in, ff})}, {inner, outer, d, ff}));
  y = einsum({y, parameter(x, "down.w", {inner, outer, ff, in})}, {inner, outer, d, in});
  y = reshape(einsum({y, second.combine}, {outer, t, in}), {outer, batch, c, in});
  y = einsum({y, first.combine}, {batch, Dim("length", 8), in});
  return MtfResults({{"y", y}, {"loss", first.balance + second.balance}});
}

}  // namespace

void add_mtf_variants(MtfRows& rows) {
  rows["lightweight_conv"] = convolution(false);
  rows["dynamic_conv"] = convolution(true);
  rows["moe_in_two_levels"] = in_two_levels;
  add_synthesizers(rows);
  add_heads(rows);
}

}  // namespace tessera::test
