#include <cmath>

#include "base/fail.h"
#include "tessera/loops.h"
#include "tessera/nn.h"

namespace tessera::nn {

Dim batch_dim(int64_t size, bool partial) {
  return partial ? Dim::bounded("batch", size) : Dim("batch", size);
}

namespace {

/// Standard deviation of the initial logits. The initial loss is ln(vocab) + kHeadGain^2 / 2. A
/// smaller value starts with a lower loss but learns more slowly.
constexpr double kHeadGain = 0.5;

struct GptDims {
  Dim batch, length, memory_length, d_model, heads, d_head, ff, vocab;
};

GptDims dims_of(const GptOptions& o) {
  require(o.heads >= 1, "gpt: heads is {}; it must be at least 1", o.heads);
  require(o.d_model % o.heads == 0,
          "gpt: d_model {} is not a multiple of heads {}; d_head would be {:.2f}", o.d_model,
          o.heads, static_cast<double>(o.d_model) / static_cast<double>(o.heads));
  return {batch_dim(o.batch, o.partial_batch),
          {"length", o.length},
          {"memory_length", o.length},
          {"d_model", o.d_model},
          {"heads", o.heads},
          {"d_head", o.d_model / o.heads},
          {"ff", o.ff},
          {"vocab", o.vocab}};
}

Tensor projected(Tensor x, const char* name, const std::vector<std::string>& in, const Shape& out,
                 const GptOptions& o, double gain = 1, bool bias = true) {
  DenseOptions options;
  options.bias = bias;
  options.gain = gain;
  options.float8 = o.float8;
  return dense(x, name, in, out, options);
}

Tensor self_attention(Tensor x, const GptOptions& o, const GptDims& d) {
  Graph& g = x.graph();
  Scope scope(g, "attention");
  const Shape heads{d.heads, d.d_head};
  Tensor query = projected(x, "query", {"d_model"}, heads, o);
  // Renamed after the projections: if `length` is split, ranks project their slices and gather
  // keys.
  const auto in_memory = [](const Tensor& t) { return rename(t, "length", "memory_length"); };
  Tensor key = in_memory(projected(x, "key", {"d_model"}, heads, o, 1, false));  // a bias cancels
  Tensor value = in_memory(projected(x, "value", {"d_model"}, heads, o));
  AttentionOptions options;
  options.causal = true;
  options.dropout = o.dropout;
  Tensor seen = attention(query, key, value, {}, options).named("seen");
  const double gain = 1 / std::sqrt(2.0 * static_cast<double>(o.layers));  // of the residual stream
  return projected(seen, "out", {"heads", "d_head"}, Shape{d.d_model}, o, gain);
}

Tensor mlp_block(Tensor x, const GptOptions& o, const GptDims& d) {
  Scope scope(x.graph(), "mlp");
  Tensor hidden = gelu(projected(x, "up", {"d_model"}, Shape{d.ff}, o));
  const double gain = 1 / std::sqrt(2.0 * static_cast<double>(o.layers));
  return projected(hidden, "down", {"ff"}, Shape{d.d_model}, o, gain);
}

}  // namespace

Model gpt(Graph& g, const GptOptions& o) {
  const GptDims d = dims_of(o);
  const DType stored = o.dtype == DType::float64 ? DType::float64 : DType::float32;
  Tensor inputs = g.input("inputs", {d.batch, d.length}, DType::int32);
  Tensor targets = g.input("targets", {d.batch, d.length}, DType::int32);
  Scope scope(g, "gpt");
  Tensor embedding = g.parameter("embedding", {d.vocab, d.d_model}, normal(0.02), stored);
  Tensor position = g.parameter("position", {d.length, d.d_model}, normal(0.02), stored);
  auto drop = [&](Tensor t) { return o.dropout > 0 ? dropout(t, o.dropout) : t; };
  Tensor x = gather(embedding, inputs, "vocab") + position;
  if (o.dtype != stored) x = cast(x, o.dtype);
  x = drop(x);
  auto block = [&](Tensor t) {
    t = t + drop(self_attention(norm(t, "norm1", "d_model"), o, d));
    return t + drop(mlp_block(norm(t, "norm2", "d_model"), o, d));
  };
  if (o.scan) {
    x = repeat({"layers", o.layers}, x, [&](Tensor t) {
      const Scope scope(g, "block");
      return block(t);
    });
  }
  for (int64_t i = 0; i < o.layers && !o.scan; ++i) {
    const Scope scope(g, "block", i, o.layers);
    x = block(x);
  }
  x = norm(x, "norm", "d_model");
  const Shape logit_shape{d.batch, d.length, d.vocab};
  Tensor logits;
  if (o.tied) {
    logits = einsum({x, embedding.dtype() == x.dtype() ? embedding : cast(embedding, x.dtype())},
                    logit_shape);
  } else {
    logits = dense(x, "head", {"d_model"}, Shape{d.vocab}, false, kHeadGain);
  }
  logits = logits.named("logits");
  Tensor loss = mean_all(cross_entropy(logits, targets, "vocab")).named("loss");
  return {loss, logits, {inputs, targets}, {}, {}, inputs};
}

Model mlp(Graph& g, const MlpOptions& o) {
  const Dim batch = batch_dim(o.batch, o.partial_batch), rows("rows", o.rows), cols("cols", o.cols);
  const Dim hidden("hidden", o.hidden), hidden2("hidden2", o.hidden), classes("classes", o.classes);
  Tensor images = g.input("images", {batch, rows, cols}, DType::float32);
  Tensor labels = g.input("labels", {batch}, DType::int32);
  Scope scope(g, "mlp");
  Tensor h = relu(dense(images, "layer1", {"rows", "cols"}, Shape{hidden}));
  h = relu(dense(h, "layer2", {"hidden"}, Shape{hidden2}));
  Tensor logits = dense(h, "head", {"hidden2"}, Shape{classes}).named("logits");
  Tensor loss = mean_all(cross_entropy(logits, labels, "classes")).named("loss");
  return {loss, logits, {images, labels}};
}

}  // namespace tessera::nn
