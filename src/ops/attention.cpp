// Attention: composites whose bodies are their definitions. On devices with the kernels "attention"
// and "attention_grad", the logits of unmasked attention are never stored: backward recomputes them
// and gets the weights from the stored log-sum-exp (Dao et al. 2022).
#include "ops/attention.h"

#include <cmath>

#include "base/misspelt.h"
#include "ir/emit.h"
#include "ir/source_ops.h"
#include "ops/infer.h"
#include "ops/precision.h"
#include "ops/random.h"
#include "tessera/ops.h"

namespace tessera {

extern const Op kMaskedAttention;

namespace {

using Tensors = std::vector<Tensor>;

bool has_mask(size_t operands, const Attrs& attrs) {
  return operands - structure_operands(attrs) - attrs.has("prefix") - attrs.has("sinks") > 3;
}

/// With sinks s: exp(x) / (sum exp x + exp s), relative to the largest of all.
Tensor weights_of(const Tensor& logits, const Tensor& sinks, const std::string& memory) {
  if (sinks.empty()) return softmax(logits, memory);
  const Tensor s = narrow(sinks, logits.dtype()),
               top = stop_gradient(maximum(reduce_max(logits, memory), s)), e = exp(logits - top);
  return e / (reduce_sum(e, memory) + exp(s - top));
}

std::vector<ValueType> infer_masked_attention(const OpCall& call) {
  std::vector<ValueType> result = infer_attention(call);
  if (has_mask(call.in.size(), call.attrs))
    TESSERA_REQUIRE(call.in[3].dtype == DType::bool_, "the mask is {}; it must be bool",
                    to_string(call.in[3].dtype));
  return result;
}

Tensors masked_attention_body(const Tensors& in, const Attrs& attrs) {
  const bool masks = has_mask(in.size(), attrs);
  Tensor seen = visible(in, attrs);
  if (masks) seen = seen.empty() ? in[3] : logical_and(seen, in[3]);
  Tensor logits = attention_logits(in, attrs, bias_of_positions(in, attrs), seen);
  if (const Shape shape = logit_shape(in, attrs); logits.shape() != shape)
    logits = transpose(logits, shape);
  Tensor weights =
      weights_of(logits, operand_of(in, attrs, "sinks"), attrs.get<std::string>("memory_length"));
  if (masks || may_hide_all(attrs))
    weights = where(seen, weights, constant(weights.graph(), 0, weights.dtype()));
  weights = dropped(kept_weights(in, attrs), weights, attrs);
  return {einsum({cast(weights, in[0].dtype()), in[2]},
                 attended_shape(in[0].shape(), in[2].shape(), attrs))};
}

std::vector<ValueType> infer_plain_attention(const OpCall& call) {
  std::vector<ValueType> result = infer_attention(call);
  result.push_back(sums_type(call));
  return result;
}

Tensors attention_body(const Tensors& in, const Attrs& attrs) {
  const Tensor bias = bias_of_positions(in, attrs), keep = kept_weights(in, attrs);
  if (may_hide_all(attrs)) return attention_where(visible(in, attrs), bias, keep, in, attrs);
  const Tensor logits = attention_logits(in, attrs, bias, visible(in, attrs));
  const auto& memory = attrs.get<std::string>("memory_length");
  const Tensor most = reduce_max(logits, memory), e = exp(logits - most),
               sum = reduce_sum(e, memory), weights = e / sum, log_sum = most + log(sum);
  return {einsum({narrow(dropped(keep, weights, attrs), in[0].dtype()), in[2]},
                 attended_shape(in[0].shape(), in[2].shape(), attrs)),
          transpose(log_sum, in[0].shape().without({attrs.get<std::string>("key_dim")}))};
}

Tensors attention_gradient(const GradCall& call) { return attention_gradients(call, {}); }

/// Adds to the query the dims that only the others have, but for the values' own and that of the
/// entries by distance: examples that share queries.
Tensor for_all(Tensor query, const Tensors& others, const std::string& value_dim,
               const std::string& entries, const AttentionOptions& o, Loc at) {
  std::vector<Dim> dims;
  for (const Tensor& t : others) {
    for (const Dim& d : t.shape()) {
      if (d.name != o.memory_length && d.name != value_dim && d.name != entries &&
          !query.shape().has(d.name) && !Shape(dims).has(d.name))
        dims.push_back(d);
    }
  }
  if (dims.empty()) return query;
  for (const Dim& d : query.shape()) dims.push_back(d);
  return broadcast(query, Shape(dims), at);
}

/// Whether the positions of queries and keys tell the kernel which random bits are theirs: those of
/// a bounded length are moved, and a kernel draws for neighbouring keys.
bool may_draw(const Tensor& query, const Tensor& key, const Attrs& dropout,
              const AttentionOptions& o) {
  const Shape bits = drawn_shape(dropout);
  return !query.dim(o.length).is_bounded && !key.dim(o.memory_length).is_bounded &&
         bits[bits.rank() - 1].name == o.memory_length;
}

}  // namespace

extern const Op kAttention = {.name = "attention",
                              .infer = infer_plain_attention,
                              .zero_padding = 0b1111000,
                              .gradient = attention_gradient,
                              .flops = attention_flops<1, 1>,
                              .body = attention_body,
                              .kernel = KernelKind::attention,
                              .emit = emit_attention,
                              .sharded_body = attention_sharded,
                              .in_order = attends_in_order};
extern const Op kMaskedAttention = {
    .name = "masked_attention", .infer = infer_masked_attention, .body = masked_attention_body};

Tensor attention(Tensor query, Tensor key, Tensor value, Tensor mask, const AttentionOptions& o,
                 Loc at) {
  const bool is_users = is_users_call(at);
  return on_behalf_of("attention", at, [&]() -> Tensor {
    if (is_users) {
      const std::vector<std::string> meant = {o.length, o.memory_length, o.key_dim};
      require_no_misspelling(query.shape(), key.shape(), meant);
      require_no_misspelling(query.shape(), value.shape(), meant);
      for (const Tensor& t :
           {o.segments, o.memory_segments, o.prefix, o.sinks, o.slopes, o.by_distance}) {
        if (!t.empty()) require_no_misspelling(query.shape(), t.shape(), meant);
      }
      if (!mask.empty()) {
        const Shape logits = query.shape().united(key.shape()).without({o.key_dim});
        require_no_misspelling(logits, mask.shape(), meant);
      }
    }
    TESSERA_REQUIRE(o.dropout >= 0 && o.dropout < 1, "[attention] dropout {} is not in [0, 1) ({})",
                    o.dropout, where(at));
    TESSERA_REQUIRE(
        mask.empty() || !mask.shape().has(o.key_dim),
        "[attention] the mask {} has the dim '{}', which the product of query and key sums "
        "over; it has dims of the logits ({})",
        mask.empty() ? "" : mask.shape().to_string(), o.key_dim, where(at));
    require_structure(query, o, at);
    Tensors in = {key, value};
    if (!mask.empty()) in.push_back(mask);
    Attrs attrs = attention_attrs(query, key, value, o);
    for (const auto& [name, t] : {std::pair("prefix", o.prefix), std::pair("sinks", o.sinks)}) {
      if (t.empty()) continue;
      attrs.set(name, int64_t{1});
      in.push_back(t);
    }
    for (const Tensor& t : structure_of(query, o)) in.push_back(t);
    const std::string own = attrs.has("value_dim") ? value_dim_of(attrs) : "";
    query = for_all(query, in, own, attrs.get<std::string>("by_distance", ""), o, at);
    in.insert(in.begin(), query);
    const Attrs dropout = o.dropout > 0 ? dropout_attrs(in, attrs, o.dropout) : Attrs();
    add(attrs, dropout);
    bool plain = mask.empty();
    plain = plain && (o.dropout == 0 || may_draw(query, key, dropout, o));
    const Shape columns = own.empty() ? Shape{} : Shape{key.dim(o.key_dim), value.dim(own)};
    for (const Tensor& t : {key, value}) {
      for (const Dim& dim : t.shape().without(columns.names()))
        plain = plain && (dim.name == o.memory_length || query.shape().has(dim.name)) &&
                key.shape().has(dim.name) && value.shape().has(dim.name);
    }
    if (plain && !(o.prefix.empty() && o.sinks.empty()))
      return joined_attention(query, key, value, o, dropout, at);
    return query.graph().add(plain ? kAttention : kMaskedAttention, in, std::move(attrs), at)[0];
  });
}

}  // namespace tessera
