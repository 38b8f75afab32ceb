// cross_entropy and attention: composites whose bodies are their definitions.
#include <cmath>

#include "ir/source_ops.h"
#include "ops/infer.h"
#include "ops/random.h"
#include "ops/sum_to.h"
#include "tessera/ops.h"

namespace tessera {

namespace {

using Tensors = std::vector<Tensor>;

Tensor wide(const Tensor& x) { return x.dtype() == DType::bfloat16 ? cast(x, DType::float32) : x; }

std::vector<ValueType> infer_cross_entropy(const OpCall& call) {
  const auto& classes = call.attrs.get<std::string>("classes");
  const ValueType &logits = call.in[0], &labels = call.in[1];
  require(is_floating(logits.dtype), "the logits are {}; they must be floating",
          to_string(logits.dtype));
  require_dims(logits.shape, {classes}, "class");
  require_same_sizes(call);
  const bool soft = is_floating(labels.dtype);
  require(soft || labels.dtype == DType::int32 || labels.dtype == DType::int64,
          "the labels are {}; they must be int32 or int64, or floating for soft labels",
          to_string(labels.dtype));
  require(!soft || labels.dtype == logits.dtype,
          "soft labels are {} but the logits are {}; use cast()", to_string(labels.dtype),
          to_string(logits.dtype));
  const Shape expected = soft ? logits.shape : logits.shape.without({classes});
  bool same = labels.shape.rank() == expected.rank();
  for (const Dim& d : expected) same = same && labels.shape.has(d.name);
  require(same, "the labels are {}; {} labels of logits {} have the dims {}",
          labels.shape.to_string(), soft ? "soft" : "integer", logits.shape.to_string(),
          expected.to_string());
  const DType dtype = logits.dtype == DType::bfloat16 ? DType::float32 : logits.dtype;
  return {{logits.shape.without({classes}), dtype}};
}

// lse(logits) - logits[label] + z lse^2; soft labels: lse sum(p) - sum(p logits). Everything in
// float32 at least.
Tensors cross_entropy_body(const Tensors& in, const Attrs& attrs) {
  const auto& classes = attrs.get<std::string>("classes");
  const double z = attrs.get<double>("z_loss");
  Tensor logits = wide(in[0]), lse = reduce_logsumexp(logits, classes), loss;
  if (is_floating(in[1].dtype())) {
    Tensor p = wide(in[1]);
    loss = lse * reduce_sum(p, classes) - reduce_sum(p * logits, classes);
  } else {
    loss = lse - gather(logits, in[1], classes);
  }
  if (z != 0) loss = loss + square(lse) * z;
  return {loss.shape() == lse.shape() ? loss : transpose(loss, lse.shape())};
}

// d/dlogits = (softmax (1 + 2 z lse) - one_hot) g; soft labels: (softmax (sum(p) + 2 z lse) - p) g.
Tensors cross_entropy_gradient(const GradCall& c) {
  const auto& classes = c.attrs.get<std::string>("classes");
  const double z = c.attrs.get<double>("z_loss");
  Tensor logits = wide(c.in[0]), lse = reduce_logsumexp(logits, classes), g = c.grads[0];
  Tensor soft = exp(logits - lse), grad;
  const bool integer = !is_floating(c.in[1].dtype());
  Tensor target =
      integer ? one_hot(c.in[1], c.in[0].dim(classes), 1, 0, logits.dtype()) : wide(c.in[1]);
  Tensor factor = integer ? constant(c.graph, 1, logits.dtype()) : reduce_sum(target, classes);
  if (z != 0) factor = factor + lse * (2 * z);
  grad = sum_to((soft * factor - target) * g, c.in[0].shape());
  Tensor labels_grad = integer ? Tensor() : sum_to((lse - logits) * g, c.in[1].shape());
  if (!integer && labels_grad.dtype() != c.in[1].dtype())
    labels_grad = cast(labels_grad, c.in[1].dtype());
  return {grad.dtype() == c.in[0].dtype() ? grad : cast(grad, c.in[0].dtype()), labels_grad};
}

std::vector<ValueType> infer_attention(const OpCall& call) {
  const auto& length = call.attrs.get<std::string>("length");
  const auto& memory = call.attrs.get<std::string>("memory_length");
  const auto& key_dim = call.attrs.get<std::string>("key_dim");
  require(is_floating(call.in[0].dtype), "the query is {}; it must be floating",
          to_string(call.in[0].dtype));
  require(call.in[1].dtype == call.in[0].dtype && call.in[2].dtype == call.in[0].dtype,
          "query, key and value are {}, {} and {}; they must agree", to_string(call.in[0].dtype),
          to_string(call.in[1].dtype), to_string(call.in[2].dtype));
  require_same_sizes(call);
  require_dims(call.in[0].shape, {length, key_dim}, "query");
  require_dims(call.in[1].shape, {memory, key_dim}, "key");
  require_dims(call.in[2].shape, {memory, key_dim}, "value");
  require(!call.in[0].shape.has(memory),
          "the query has the key dim '{}'; rename its position dim '{}'", memory, length);
  require(call.in.size() < 4 || call.in[3].dtype == DType::bool_, "the mask is {}; it must be bool",
          to_string(call.in.back().dtype));
  return {call.in[0]};
}

// Masked logits become the lowest finite number, so that a row that sees nothing is uniform, never
// NaN.
Tensors attention_body(const Tensors& in, const Attrs& attrs) {
  const auto& length = attrs.get<std::string>("length");
  const auto& memory = attrs.get<std::string>("memory_length");
  const auto& key_dim = attrs.get<std::string>("key_dim");
  Graph& g = in[0].graph();
  const Shape dims = in[0].shape().without({length, key_dim});
  std::vector<Dim> logit_dims = dims.dims();
  logit_dims.push_back(in[0].dim(length));
  logit_dims.push_back(in[1].dim(memory));
  const Shape logit_shape(logit_dims);
  Tensor logits = wide(einsum({in[0], in[1]}, logit_shape)) * attrs.get<double>("scale");
  Tensor lowest = constant(g, -1e30, logits.dtype());
  if (attrs.get<int64_t>("causal")) {
    logits = where(iota(g, in[0].dim(length)) >= iota(g, in[1].dim(memory)), logits, lowest);
  }
  if (in.size() > 3) logits = where(in[3], logits, lowest);
  Tensor weights =
      softmax(logits.shape() == logit_shape ? logits : transpose(logits, logit_shape), memory);
  if (attrs.get<double>("dropout") > 0) {
    weights =
        dropout_of_stream(weights, attrs.get<double>("dropout"), attrs.get<int64_t>("stream"));
  }
  return {einsum({cast(weights, in[0].dtype()), in[2]}, in[0].shape())};
}

}  // namespace

extern const Op kCrossEntropy = {.name = "cross_entropy",
                                 .infer = infer_cross_entropy,
                                 .gradient = cross_entropy_gradient,
                                 .body = cross_entropy_body};
extern const Op kAttention = {
    .name = "attention", .infer = infer_attention, .body = attention_body};

Tensor cross_entropy(Tensor logits, Tensor labels, const std::string& classes, double z_loss,
                     Loc at) {
  return one(logits.graph(), kCrossEntropy, {logits, labels},
             {{"classes", classes}, {"z_loss", z_loss}}, at);
}

Tensor attention(Tensor query, Tensor key, Tensor value, Tensor mask, const AttentionOptions& o,
                 Loc at) {
  std::vector<Tensor> in = {query, key, value};
  if (mask) in.push_back(mask);
  const int d = query.shape().find(o.key_dim);
  const double scale = o.scale != 0 ? o.scale
                       : d < 0      ? 1
                                    : 1 / std::sqrt(static_cast<double>(query.shape()[d].size));
  Attrs attrs = {{"length", o.length},   {"memory_length", o.memory_length},
                 {"key_dim", o.key_dim}, {"causal", int64_t{o.causal}},
                 {"scale", scale},       {"dropout", o.dropout}};
  if (o.dropout > 0) attrs.set("stream", new_stream(query.graph()));
  return one(query.graph(), kAttention, in, std::move(attrs), at);
}

}  // namespace tessera
