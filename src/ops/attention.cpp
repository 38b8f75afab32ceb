// Attention: composites whose bodies are their definitions. Where a device has the kernels
// "attention" and "attention_grad", the logits of plain attention are never stored: the gradient
// computes them again.
#include "ops/attention.h"

#include <cmath>

#include "ir/emit.h"
#include "ir/source_ops.h"
#include "ops/infer.h"
#include "ops/precision.h"
#include "ops/random.h"
#include "tessera/ops.h"

namespace tessera {

extern const Op kAttention, kMaskedAttention;

namespace {

using Tensors = std::vector<Tensor>;

std::vector<ValueType> infer_masked_attention(const OpCall& call) {
  std::vector<ValueType> result = infer_attention(call);
  require(call.in.size() < 4 || call.in[3].dtype == DType::bool_, "the mask is {}; it must be bool",
          to_string(call.in.back().dtype));
  return result;
}

/// Where a query may look; empty: everywhere. `start`: the position of the first query, if not 0.
Tensor causal_mask(const Tensors& in, const Attrs& attrs, const Tensor& start = {}) {
  if (!attrs.get<int64_t>("causal")) return {};
  Graph& g = in[0].graph();
  const Tensor query = iota(g, in[0].dim(attrs.get<std::string>("length")));
  return (start ? start + query : query) >=
         iota(g, in[1].dim(attrs.get<std::string>("memory_length")));
}

// Masked logits become the lowest finite number, so that a row that sees nothing is uniform, never
// NaN.
Tensor attention_weights(const Tensors& in, const Attrs& attrs, const Tensor& causal,
                         const Tensor& mask) {
  const Shape shape = logit_shape(in, attrs);
  Tensor logits = wide(einsum({in[0], in[1]}, shape)) * attrs.get<double>("scale");
  Tensor lowest = constant(in[0].graph(), -1e30, logits.dtype());
  if (causal) logits = where(causal, logits, lowest);
  if (mask) logits = where(mask, logits, lowest);
  if (logits.shape() != shape) logits = transpose(logits, shape);
  return softmax(logits, attrs.get<std::string>("memory_length"));
}

Tensors attention_body(const Tensors& in, const Attrs& attrs) {
  Tensor weights =
      attention_weights(in, attrs, causal_mask(in, attrs), in.size() > 3 ? in[3] : Tensor());
  if (attrs.get<double>("dropout") > 0) {
    std::vector<Repeat> copies;
    const auto& counts = attrs.get<std::vector<int64_t>>("copies");
    const auto& copy = attrs.get<std::vector<int64_t>>("copy");
    for (size_t i = 0; i < counts.size(); ++i) copies.push_back({"copy", counts[i], copy[i]});
    weights = dropout_of_stream(weights, attrs.get<double>("dropout"), attrs.get<int64_t>("stream"),
                                copies);
  }
  return {einsum({cast(weights, in[0].dtype()), in[2]}, in[0].shape())};
}

/// Query, key, value, gradient of the result; perhaps the position of the first query, int32 with
/// some of query's dims.
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
  const Tensor causal = causal_mask(in, attrs, in.size() > 4 ? in[4] : Tensor());
  Tensor weights = attention_weights(in, attrs, causal, {});
  Tensor back = wide(einsum({in[3], in[2]}, shape));
  Tensor inner = reduce_sum(back * weights, attrs.get<std::string>("memory_length"));
  Tensor logits_grad = weights * (back - inner);
  if (causal) {
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

/// Where the numbers of the dropout come from: the stream, and which copy of the scope draws them.
void set_stream(Graph& g, Attrs& attrs) {
  std::vector<int64_t> counts, copy;
  for (const Repeat& r : g.copies()) {
    counts.push_back(r.count);
    copy.push_back(r.index);
  }
  attrs.set("stream", new_stream(g));
  attrs.set("copies", counts);
  attrs.set("copy", copy);
}

}  // namespace

extern const Op kAttention = {.name = "attention",
                              .infer = infer_attention,
                              .gradient = attention_gradient,
                              .flops = attention_flops<2>,
                              .body = attention_body,
                              .emit = emit_attention,
                              .by_slices = attention_by_slices};
extern const Op kAttentionGrad = {.name = "attention_grad",
                                  .infer = infer_attention_grad,
                                  .flops = attention_flops<5>,
                                  .body = attention_grad_body,
                                  .emit = emit_attention,
                                  .by_slices = attention_grad_by_slices};
extern const Op kMaskedAttention = {
    .name = "masked_attention", .infer = infer_masked_attention, .body = attention_body};

Tensor attention(Tensor query, Tensor key, Tensor value, Tensor mask, const AttentionOptions& o,
                 Loc at) {
  return on_behalf_of("attention", at, [&]() -> Tensor {
    std::vector<Tensor> in = {query, key, value};
    if (mask) in.push_back(mask);
    Attrs attrs = attention_attrs(query, o);
    attrs.set("dropout", o.dropout);
    if (o.dropout > 0) set_stream(query.graph(), attrs);
    // A body knows of no part of a batch, whose random numbers are those of the whole.
    if (o.dropout > 0 && !query.graph().repeats().empty()) return attention_body(in, attrs)[0];
    bool plain = !mask && o.dropout == 0;
    for (const Tensor& t : {key, value}) {
      for (const Dim& dim : t.shape())
        plain = plain && (dim.name == o.memory_length || query.shape().has(dim.name)) &&
                key.shape().has(dim.name) && value.shape().has(dim.name);
    }
    return one(plain ? kAttention : kMaskedAttention, in, std::move(attrs), at);
  });
}

}  // namespace tessera
