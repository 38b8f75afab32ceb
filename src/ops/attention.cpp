// Attention: composites whose bodies are their definitions. Where a device has the kernels
// "attention" and "attention_grad", the logits of plain attention are never stored: the gradient
// computes them again.
#include <cmath>

#include "ir/emit.h"
#include "ir/source_ops.h"
#include "ops/infer.h"
#include "ops/precision.h"
#include "ops/random.h"
#include "tessera/ops.h"

namespace tessera {

extern const Op kAttention, kMaskedAttention, kAttentionGrad;

namespace {

using Tensors = std::vector<Tensor>;

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
  return {call.in[0]};
}

std::vector<ValueType> infer_masked_attention(const OpCall& call) {
  std::vector<ValueType> result = infer_attention(call);
  require(call.in.size() < 4 || call.in[3].dtype == DType::bool_, "the mask is {}; it must be bool",
          to_string(call.in.back().dtype));
  return result;
}

/// [dims of the query without length and key_dim, length, memory_length].
Shape logit_shape(const Tensors& in, const Attrs& attrs) {
  const auto& length = attrs.get<std::string>("length");
  const Shape rest = in[0].shape().without({length, attrs.get<std::string>("key_dim")});
  std::vector<Dim> dims = rest.dims();
  dims.push_back(in[0].dim(length));
  dims.push_back(in[1].dim(attrs.get<std::string>("memory_length")));
  return Shape(dims);
}

/// Where a query may look; empty: everywhere.
Tensor causal_mask(const Tensors& in, const Attrs& attrs) {
  if (!attrs.get<int64_t>("causal")) return {};
  Graph& g = in[0].graph();
  return iota(g, in[0].dim(attrs.get<std::string>("length"))) >=
         iota(g, in[1].dim(attrs.get<std::string>("memory_length")));
}

// Masked logits become the lowest finite number, so that a row that sees nothing is uniform, never
// NaN.
Tensor attention_weights(const Tensors& in, const Attrs& attrs, const Tensor& mask) {
  const Shape shape = logit_shape(in, attrs);
  Tensor logits = wide(einsum({in[0], in[1]}, shape)) * attrs.get<double>("scale");
  Tensor lowest = constant(in[0].graph(), -1e30, logits.dtype());
  if (Tensor causal = causal_mask(in, attrs)) logits = where(causal, logits, lowest);
  if (mask) logits = where(mask, logits, lowest);
  if (logits.shape() != shape) logits = transpose(logits, shape);
  return softmax(logits, attrs.get<std::string>("memory_length"));
}

Tensors attention_body(const Tensors& in, const Attrs& attrs) {
  Tensor weights = attention_weights(in, attrs, in.size() > 3 ? in[3] : Tensor());
  if (attrs.get<double>("dropout") > 0) {
    weights =
        dropout_of_stream(weights, attrs.get<double>("dropout"), attrs.get<int64_t>("stream"));
  }
  return {einsum({cast(weights, in[0].dtype()), in[2]}, in[0].shape())};
}

/// Query, key, value, gradient of the result.
std::vector<ValueType> infer_attention_grad(const OpCall& call) {
  infer_attention(call);
  require(call.in[3] == call.in[0], "the gradient is {} {} but the query {} {}",
          to_string(call.in[3].dtype), call.in[3].shape.to_string(), to_string(call.in[0].dtype),
          call.in[0].shape.to_string());
  return {call.in[0], call.in[1], call.in[2]};
}

// With W = softmax(S), S = scale q k: dv = W g, dW = g v, dS = W (dW - sum(dW W)), dq = scale dS k,
// dk = scale dS q.
Tensors attention_grad_body(const Tensors& in, const Attrs& attrs) {
  const Shape shape = logit_shape(in, attrs);
  const DType dtype = in[0].dtype();
  Tensor weights = attention_weights(in, attrs, {});
  Tensor back = wide(einsum({in[3], in[2]}, shape));
  Tensor inner = reduce_sum(back * weights, attrs.get<std::string>("memory_length"));
  Tensor logits_grad = weights * (back - inner);
  if (Tensor causal = causal_mask(in, attrs)) {
    logits_grad = where(causal, logits_grad, constant(in[0].graph(), 0, logits_grad.dtype()));
  }
  Tensor d = cast(logits_grad * attrs.get<double>("scale"), dtype);
  return {einsum({d, in[1]}, in[0].shape()), einsum({d, in[0]}, in[1].shape()),
          einsum({cast(weights, dtype), in[3]}, in[2].shape())};
}

Tensors attention_gradient(const GradCall& c) {
  Tensors in = c.in;
  in.push_back(c.grads[0]);
  return c.graph.add(kAttentionGrad, in, c.attrs, Loc::current());
}

/// Views over all factors, and which of them are the three dims; the kernel's positions are global.
void emit_attention(EmitCall& call) {
  emit_aligned(call);
  const Attrs& attrs = call.call.attrs;
  const int length = call.factor(attrs.get<std::string>("length")),
            memory = call.factor(attrs.get<std::string>("memory_length"));
  call.step.attrs = {{"length", int64_t{length}},
                     {"memory_length", int64_t{memory}},
                     {"key_dim", int64_t{call.factor(attrs.get<std::string>("key_dim"))}},
                     {"causal", attrs.get<int64_t>("causal")},
                     {"scale", attrs.get<double>("scale")}};
  call.step.exprs = {call.offset[length], call.offset[memory]};
}

/// Of so many products of query and key length with key_dim.
template <int products>
int64_t attention_flops(const OpCall& call) {
  int64_t n = 2 * products * call.in[0].shape.elements();
  return n * call.in[1].shape.dim(call.attrs.get<std::string>("memory_length")).size;
}

}  // namespace

extern const Op kAttention = {.name = "attention",
                              .infer = infer_attention,
                              .gradient = attention_gradient,
                              .flops = attention_flops<2>,
                              .body = attention_body,
                              .emit = emit_attention};
extern const Op kAttentionGrad = {.name = "attention_grad",
                                  .infer = infer_attention_grad,
                                  .flops = attention_flops<5>,
                                  .body = attention_grad_body,
                                  .emit = emit_attention};
extern const Op kMaskedAttention = {
    .name = "masked_attention", .infer = infer_masked_attention, .body = attention_body};

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
  // A body knows of no part of a batch, whose random numbers are those of the whole.
  if (o.dropout > 0 && !query.graph().repeats().empty()) return attention_body(in, attrs)[0];
  bool plain = !mask && o.dropout == 0;
  for (const Tensor& t : {key, value}) {
    for (const Dim& dim : t.shape())
      plain = plain && (dim.name == o.memory_length || query.shape().has(dim.name)) &&
              key.shape().has(dim.name) && value.shape().has(dim.name);
  }
  return one(query.graph(), plain ? kAttention : kMaskedAttention, in, std::move(attrs), at);
}

}  // namespace tessera
