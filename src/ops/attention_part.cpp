// Attention over a part of the keys, and the helpers of attention.h.
#include <cmath>

#include "ir/source_ops.h"
#include "ops/attention.h"
#include "ops/infer.h"
#include "ops/precision.h"

namespace tessera {

namespace {
using Tensors = std::vector<Tensor>;
constexpr double kNothing = -1e30;  // log of the sum over no keys
}  // namespace

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

ValueType sums_type(const OpCall& call) {
  const DType dtype = call.in[0].dtype;
  return {call.in[0].shape.without({call.attrs.get<std::string>("key_dim")}),
          is_narrow(dtype) ? DType::float32 : dtype};
}

void require_positions(const OpCall& call, size_t input, const char* what) {
  const ValueType& type = call.in.at(input);
  const auto& length = call.attrs.get<std::string>("length");
  const auto& key_dim = call.attrs.get<std::string>("key_dim");
  require(type.dtype == DType::int32, "{} is {}; it must be int32", what, to_string(type.dtype));
  for (const Dim& d : type.shape)
    require(d.name != length && d.name != key_dim && call.in[0].shape.has(d.name),
            "{} has dim '{}'; it has some dims of the query {} besides '{}' and '{}'", what, d.name,
            call.in[0].shape.to_string(), length, key_dim);
}

Tensor visible(const Tensors& in, const Attrs& attrs, const Tensor& query_start,
               const Tensor& key_start) {
  Graph& g = in[0].graph();
  Tensor key = iota(g, in[1].dim(attrs.get<std::string>("memory_length"))), there;
  if (!key_start.empty()) {
    key = key_start + key;
    there = key < constant(g, static_cast<double>(attrs.get<int64_t>("memory")), DType::int32);
  }
  if (!attrs.get<int64_t>("causal")) return there;
  const Tensor query = iota(g, in[0].dim(attrs.get<std::string>("length")));
  const Tensor before = (query_start.empty() ? query : query_start + query) >= key;
  return there.empty() ? before : logical_and(there, before);
}

// Masked logits are a large negative finite number: a row without any key gets uniform weights, not
// NaN.
Tensor only_where(const Tensor& seen, const Tensor& logits) {
  return where(seen, logits, constant(logits.graph(), kNothing, logits.dtype()));
}

Tensor attention_logits(const Tensors& in, const Attrs& attrs, const Tensor& seen) {
  const Tensor logits =
      wide(einsum({with_range(in[0]), with_range(in[1])}, logit_shape(in, attrs))) *
      attrs.get<double>("scale");
  return seen.empty() ? logits : only_where(seen, logits);
}

void emit_attention(EmitCall& call) {
  emit_aligned(call);
  const Attrs& attrs = call.call.attrs;
  for (const char* dim : {"length", "memory_length", "key_dim"})
    call.step.attrs.set(dim, int64_t{call.factor(attrs.get<std::string>(dim))});
  call.step.attrs.set("causal", attrs.get<int64_t>("causal"));
  call.step.attrs.set("scale", attrs.get<double>("scale"));
  if (attrs.has("memory")) call.step.attrs.set("memory", attrs.get<int64_t>("memory"));
  for (const char* dim : {"length", "memory_length"})
    call.step.exprs.push_back(call.offset[call.factor(attrs.get<std::string>(dim))]);
}

namespace {

std::vector<ValueType> infer_part(const OpCall& call) {
  std::vector<ValueType> result = infer_attention(call);
  require_positions(call, 3, "query_start");
  require_positions(call, 4, "key_start");
  result.push_back(sums_type(call));
  return result;
}

Tensors part_body(const Tensors& in, const Attrs& attrs) {
  const auto& memory = attrs.get<std::string>("memory_length");
  const Tensor seen = broadcast(visible(in, attrs, in[3], in[4]), logit_shape(in, attrs)),
               x = attention_logits(in, attrs, seen), zero = constant(x.graph(), 0, x.dtype());
  const Tensor most = reduce_max(x, memory);
  const Tensor weights = where(seen, exp(x - most), zero);
  const Tensor sum = reduce_sum(weights, memory);
  const Tensor some = sum > zero;
  const Tensor divisor = where(some, sum, constant(x.graph(), 1, x.dtype()));
  return {einsum({narrow(weights / divisor, in[0].dtype()), in[2]}, in[0].shape()),
          transpose(where(some, most + log(divisor), constant(x.graph(), kNothing, x.dtype())),
                    in[0].shape().without({attrs.get<std::string>("key_dim")}))};
}

Tensors part_gradient(const GradCall& call) {
  Tensors d = attention_gradients(call, {call.in[3], call.in[4]});
  d.resize(call.in.size());
  return d;
}

}  // namespace

extern const Op kAttentionPart = {.name = "attention_part",
                                  .infer = infer_part,
                                  .gradient = part_gradient,
                                  .flops = attention_flops<2>,
                                  .body = part_body,
                                  .kernel = KernelKind::attention_part,
                                  .emit = emit_attention};
AttentionPart attention_part(Tensor query, Tensor key, Tensor value, Tensor query_start,
                             Tensor key_start, int64_t memory_size, const AttentionOptions& o,
                             Loc at) {
  return on_behalf_of("attention_part", at, [&]() -> AttentionPart {
    require(o.dropout == 0, "[attention_part] there is no dropout of a part; attention() has it");
    require(memory_size >= 1, "[attention_part] {} keys in all; there is at least one ({})",
            memory_size, where(at));
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
