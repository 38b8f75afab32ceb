// The attention of mesh_tensorflow_layers.h.
#include "mesh_tensorflow/layers.h"

namespace tessera::test {

namespace {

const Dim length("length", 5), memory("memory_length", 5);

/// Mesh TensorFlow has the scale of the logits in the first weights of the queries.
nn::BiasedOptions unscaled() {
  nn::BiasedOptions o;
  o.scale = 1;
  return o;
}

MtfBuild attended(const std::function<Tensor(const MtfInputs&)>& mask,
                  const std::optional<double>& extra_logit = {}) {
  return [=](const MtfInputs& x) {
    nn::BiasedOptions o = unscaled();
    o.extra_logit = extra_logit;
    return nn::biased_attention(x("q"), x("k"), x("v"), mask ? mask(x) : Tensor(), o);
  };
}

void add_plain(MtfRows& rows) {
  rows["dot_product_attention"] = attended({});
  rows["attention_extra_logit"] = attended({}, 0.3);
  rows["attention_causal"] =
      attended([](const MtfInputs& x) { return nn::causal_mask(x.graph, length, memory); });
  rows["attention_same_segment"] = attended([](const MtfInputs& x) {
    Tensor of_keys = rename(x("segments"), "length", "memory_length");
    return nn::segment_mask(x("segments"), of_keys);
  });
  rows["attention_ignore_padding"] = attended([](const MtfInputs& x) {
    Tensor tokens = rename(x("tokens"), "length", "memory_length");
    return nn::nonzero_weights(tokens) > 0.5;
  });
  rows["attention_bias"] = [](const MtfInputs& x) {
    nn::BiasedOptions o = unscaled();
    o.bias = x("bias");
    o.extra_logit = 0.2;
    return nn::biased_attention(x("q"), x("k"), x("v"), {}, o);
  };
}

nn::MultiHeadOptions two_heads() {
  nn::MultiHeadOptions o;
  o.heads = 2;
  o.d_head = 4;
  o.attention = unscaled();
  return o;
}

MtfBuild self_attention(const nn::MultiHeadOptions& o) {
  return [=](const MtfInputs& x) { return nn::self_attention(x("x"), "layer", "model", o); };
}

/// Keys are means of two; a query sees those that are no later than itself.
MtfBuild compressed(bool causal) {
  return [=](const MtfInputs& x) {
    nn::MultiHeadOptions o = two_heads();
    o.attention.extra_logit = 0;
    const Dim queries("length", 6), keys("memory_length", 3);
    if (causal) o.mask = iota(x.graph, keys) * 2.0 + 1.0 <= iota(x.graph, queries);
    Tensor means = rename(nn::compress_mean(x("x"), "length", 2), "length", "memory_length");
    return nn::multihead_attention(x("x"), means, "layer", "model", o);
  };
}

void add_multihead(MtfRows& rows) {
  nn::MultiHeadOptions o = two_heads();
  rows["multihead_attention"] = rows["self_attention"] = self_attention(o);
  rows["multihead_attention_of_memory"] = [=](const MtfInputs& x) {
    return nn::multihead_attention(x("x"), x("memory"), "layer", "model", o);
  };
  rows["memory_compressed_attention"] = compressed(false);
  rows["memory_compressed_causal"] = compressed(true);
  nn::MultiHeadOptions causal = o, one = o, grouped = o, shared = o;
  causal.attention.causal = true;
  rows["multihead_attention_causal"] = self_attention(causal);
  one.memory_heads = 1;
  rows["self_attention_multi_query"] = self_attention(one);
  grouped.heads = 4;
  grouped.memory_heads = 2;
  rows["self_attention_grouped"] = self_attention(grouped);
  shared.shared_kv = true;
  rows["self_attention_shared_kv"] = self_attention(shared);
}

void add_relative(MtfRows& rows) {
  for (bool causal : {false, true}) {
    const std::string name = causal ? "_causal" : "";
    rows["self_attention_relative" + name] = [=](const MtfInputs& x) {
      nn::MultiHeadOptions o = two_heads();
      o.attention.causal = causal;
      o.attention.bias = nn::relative_bias(x.graph, "bias", length, memory, Shape{Dim("heads", 2)},
                                           {8, 128, !causal});
      return nn::self_attention(x("x"), "layer", "model", o);
    };
    const auto bias = [&](const std::string& row, int64_t buckets) {
      rows[row] = [=](const MtfInputs& x) {
        const Dim queries("length", 150), keys("memory_length", 150);
        Tensor b =
            nn::relative_bias(x.graph, "bias", queries, keys, Shape(), {buckets, 128, !causal});
        return MtfResults(
            {{"first", slice(b, "length", 0, 1)}, {"last", slice(b, "length", 149, 1)}});
      };
    };
    bias("relative_bias" + name, 32);
    if (!causal) bias("relative_bias_few", 10);
  }
}

MtfBuild local(const nn::LocalOptions& o) {
  return [=](const MtfInputs& x) { return nn::local_attention(x("q"), x("k"), x("v"), o); };
}

void add_local(MtfRows& rows) {
  nn::LocalOptions o;
  o.scale = 1;
  o.radius = 3;
  rows["local_attention_causal"] = rows["local_attention_blocks"] = local(o);
  o.causal = false;
  o.ahead = 3;
  rows["local_attention_both_sides"] = local(o);
  rows["masked_local_attention"] = [](const MtfInputs& x) {
    const Shape out{Dim("heads", 1), Dim("d_head", 2)};
    Tensor q = nn::dense(x("x"), "layer.query", {"model"}, out, false),
           k = nn::dense(x("x"), "layer.key", {"model"}, out, false),
           v = nn::dense(x("x"), "layer.value", {"model"}, out, false);
    nn::LocalOptions near;
    near.scale = 1;
    near.radius = 128;
    Tensor y = nn::local_attention(q, k, v, near);
    y = nn::dense(y, "layer.out", {"heads", "d_head"}, Shape{x("x").dim("model")}, false);
    return slice(y, "length", 127, 129);
  };
  rows["local_attention_segments"] = [](const MtfInputs& x) {
    nn::LocalOptions near;
    near.scale = 1;
    near.radius = 4;
    near.segments = x("segments");
    return nn::local_attention(x("q"), x("k"), x("v"), near);
  };
}

void add_talking(MtfRows& rows) {
  rows["talking_heads"] = [](const MtfInputs& x) {
    Graph& g = x.graph;
    const Dim from("key_heads", 2), heads("heads", 3), to("value_heads", 4), wide("d_head", 4);
    Tensor m = rename(x("x"), "length", "memory_length");
    Tensor q = nn::dense(x("x"), "query", {"model"}, {from, wide}, false),
           k = nn::dense(m, "key", {"model"}, {from, wide}, false),
           v = nn::dense(m, "value", {"model"}, {to, wide}, false);
    Tensor logits = g.parameter("logits.w", {from, heads}, nn::zeros()),
           weights = g.parameter("weights.w", {heads, to}, nn::zeros());
    Tensor y =
        nn::talking_heads(q, k, v, logits, weights, nn::causal_mask(g, length, memory), unscaled());
    return nn::dense(y, "out", {"value_heads", "d_head"}, Shape{x("x").dim("model")}, false);
  };
}

}  // namespace

void add_mtf_attention(MtfRows& rows) {
  add_plain(rows);
  add_multihead(rows);
  add_relative(rows);
  add_local(rows);
  add_talking(rows);
}

}  // namespace tessera::test
