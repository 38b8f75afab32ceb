// Attention of a part of the keys, and what attention's ops share. The gradient of a part needs
// what the rows come to over all parts (Dao et al. 2022, algorithm 4).
#include <cmath>

#include "ir/source_ops.h"
#include "ops/attention.h"
#include "ops/infer.h"
#include "ops/precision.h"

namespace tessera {

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

Attrs attention_attrs(const Tensor& query, const AttentionOptions& o) {
  const int d = query.shape().find(o.key_dim);
  const double scale = o.scale != 0 ? o.scale
                       : d < 0      ? 1
                                    : 1 / std::sqrt(static_cast<double>(query.shape()[d].size));
  return {{"length", o.length},
          {"memory_length", o.memory_length},
          {"key_dim", o.key_dim},
          {"causal", int64_t{o.causal}},
          {"scale", scale}};
}

Shape logit_shape(const std::vector<Tensor>& in, const Attrs& attrs) {
  const auto& length = attrs.get<std::string>("length");
  const Shape rest = in[0].shape().without({length, attrs.get<std::string>("key_dim")});
  std::vector<Dim> dims = rest.dims();
  dims.push_back(in[0].dim(length));
  dims.push_back(in[1].dim(attrs.get<std::string>("memory_length")));
  return Shape(dims);
}

void emit_attention(EmitCall& call) {
  emit_aligned(call);
  const Attrs& attrs = call.call.attrs;
  for (const char* dim : {"length", "memory_length", "key_dim"})
    call.step.attrs.set(dim, int64_t{call.factor(attrs.get<std::string>(dim))});
  call.step.attrs.set("causal", attrs.get<int64_t>("causal"));
  call.step.attrs.set("scale", attrs.get<double>("scale"));
  for (const char* dim : {"length", "memory_length"})
    call.step.exprs.push_back(call.offset[call.factor(attrs.get<std::string>(dim))]);
}

namespace {

using Tensors = std::vector<Tensor>;

constexpr double kNothing = -1e30;  // the logarithm of a sum over no keys

ValueType sums_type(const OpCall& call) {
  const DType dtype = call.in[0].dtype;
  return {call.in[0].shape.without({call.attrs.get<std::string>("key_dim")}),
          is_narrow(dtype) ? DType::float32 : dtype};
}

std::vector<ValueType> infer_part(const OpCall& call) {
  std::vector<ValueType> result = infer_attention(call);
  const auto& length = call.attrs.get<std::string>("length");
  const auto& key_dim = call.attrs.get<std::string>("key_dim");
  for (size_t i : {3, 4}) {
    const char* what = i == 3 ? "query_start" : "key_start";
    require(call.in[i].dtype == DType::int32, "{} is {}; it must be int32", what,
            to_string(call.in[i].dtype));
    for (const Dim& d : call.in[i].shape)
      require(d.name != length && d.name != key_dim && call.in[0].shape.has(d.name),
              "{} has dim '{}'; it has some dims of the query {} besides '{}' and '{}'", what,
              d.name, call.in[0].shape.to_string(), length, key_dim);
  }
  result.push_back(sums_type(call));
  return result;
}

std::vector<ValueType> infer_part_grad(const OpCall& call) {
  infer_part(call);
  const ValueType sums = sums_type(call);
  require(
      call.in[5] == call.in[0] && call.in[6] == sums && call.in[7] == sums,
      "gradient, log_sum and products are {}, {} and {}; of the query {} they are {}, {} and {}",
      describe(call.in[5]), describe(call.in[6]), describe(call.in[7]), describe(call.in[0]),
      describe(call.in[0]), describe(sums), describe(sums));
  return {call.in[0], call.in[1], call.in[2]};
}

/// Where a query sees a key.
Tensor visible(const Tensors& in, const Attrs& attrs) {
  Graph& g = in[0].graph();
  const Tensor key = in[4] + iota(g, in[1].dim(attrs.get<std::string>("memory_length")));
  const Tensor there =
      key < constant(g, static_cast<double>(attrs.get<int64_t>("memory")), DType::int32);
  if (!attrs.get<int64_t>("causal")) return there;
  const Tensor query = in[3] + iota(g, in[0].dim(attrs.get<std::string>("length")));
  return logical_and(there, query >= key);
}

Tensor logits(const Tensors& in, const Attrs& attrs) {
  return wide(einsum({in[0], in[1]}, logit_shape(in, attrs))) * attrs.get<double>("scale");
}

Tensors part_body(const Tensors& in, const Attrs& attrs) {
  const auto& memory = attrs.get<std::string>("memory_length");
  const Shape shape = logit_shape(in, attrs);
  const Tensor seen = broadcast(visible(in, attrs), shape), x = logits(in, attrs);
  const Tensor nothing = constant(x.graph(), kNothing, x.dtype()),
               zero = constant(x.graph(), 0, x.dtype());
  const Tensor most = reduce_max(where(seen, x, nothing), memory);
  const Tensor weights = where(seen, exp(x - most), zero);
  const Tensor sum = reduce_sum(weights, memory);
  const Tensor some = sum > zero;
  const Tensor divisor = where(some, sum, constant(x.graph(), 1, x.dtype()));
  return {einsum({narrow(weights / divisor, in[0].dtype()), in[2]}, in[0].shape()),
          transpose(where(some, most + log(divisor), nothing),
                    in[0].shape().without({attrs.get<std::string>("key_dim")}))};
}

// With W = exp(S - log_sum), S = scale q k: dv = W g, dW = g v, dS = W (dW - sum(g out)),
// dq = scale dS k, dk = scale dS q.
Tensors part_grad_body(const Tensors& in, const Attrs& attrs) {
  const Shape shape = logit_shape(in, attrs);
  const DType dtype = in[0].dtype();
  const Tensor seen = broadcast(visible(in, attrs), shape), x = logits(in, attrs);
  const Tensor weights = where(seen, exp(x - in[6]), constant(x.graph(), 0, x.dtype()));
  const Tensor back = wide(einsum({in[5], in[2]}, shape));
  const Tensor d = narrow(weights * (back - in[7]) * attrs.get<double>("scale"), dtype);
  return {einsum({d, in[1]}, in[0].shape()), einsum({d, in[0]}, in[1].shape()),
          einsum({narrow(weights, dtype), in[5]}, in[2].shape())};
}

/// Of out = sum W v and log_sum: dS = W (dW - sum(g out) + g of log_sum).
Tensors part_gradient(const GradCall& c) {
  const Tensor grad =
      c.grads[0] ? c.grads[0] : broadcast(constant(c.graph, 0, c.out[0].dtype()), c.out[0].shape());
  Tensor products = reduce_sum(wide(grad) * wide(c.out[0]), c.attrs.get<std::string>("key_dim"));
  if (c.grads[1]) products = products - c.grads[1];
  Tensors in = c.in;
  in.insert(in.end(), {grad, c.out[1], products});
  Tensors d = c.graph.add(kAttentionPartGrad, in, c.attrs, Loc::current());
  d.resize(c.in.size());
  return d;
}

void emit_part(EmitCall& call) {
  emit_attention(call);
  call.step.attrs.set("memory", call.call.attrs.get<int64_t>("memory"));
}

}  // namespace

extern const Op kAttentionPart = {.name = "attention_part",
                                  .infer = infer_part,
                                  .gradient = part_gradient,
                                  .flops = attention_flops<2>,
                                  .body = part_body,
                                  .emit = emit_part};
extern const Op kAttentionPartGrad = {.name = "attention_part_grad",
                                      .infer = infer_part_grad,
                                      .flops = attention_flops<5>,
                                      .body = part_grad_body,
                                      .emit = emit_part};

AttentionPart attention_part(Tensor query, Tensor key, Tensor value, Tensor query_start,
                             Tensor key_start, int64_t memory_size, const AttentionOptions& o,
                             Loc at) {
  return on_behalf_of("attention_part", at, [&]() -> AttentionPart {
    require(o.dropout == 0, "[attention_part] there is no dropout of a part; attention() has it");
    Attrs attrs = attention_attrs(query, o);
    attrs.set("memory", memory_size);
    const Tensors out = query.graph().add(
        kAttentionPart, {query, key, value, query_start, key_start}, std::move(attrs), at);
    return {out[0], out[1]};
  });
}

AttentionPart join(const AttentionPart& a, const AttentionPart& b) {
  const Tensor most = maximum(a.log_sum, b.log_sum);
  const Tensor x = exp(a.log_sum - most), y = exp(b.log_sum - most), sum = x + y;
  const Tensor out = wide(a.out) * (x / sum) + wide(b.out) * (y / sum);
  return {narrow(out, a.out.dtype()), most + log(sum)};
}

}  // namespace tessera
