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

/// With sinks s: exp(x - log(sum exp x + exp s)), where that log is s + softplus(log_sum - s).
Tensor weights_of(const Tensor& logits, const Tensor& sinks, const std::string& memory) {
  if (sinks.empty()) return softmax(logits, memory);
  const Tensor s = narrow(sinks, logits.dtype());
  return exp(logits - (softplus(reduce_logsumexp(logits, {memory}) - s) + s));
}

std::vector<ValueType> infer_masked_attention(const OpCall& call) {
  std::vector<ValueType> result = infer_attention(call);
  if (has_mask(call.in.size(), call.attrs))
    require(call.in[3].dtype == DType::bool_, "the mask is {}; it must be bool",
            to_string(call.in[3].dtype));
  return result;
}

Tensors masked_attention_body(const Tensors& in, const Attrs& attrs) {
  const Tensor seen = visible(in, attrs);
  Tensor logits = attention_logits(in, attrs, bias_of_slopes(in, attrs), seen);
  if (has_mask(in.size(), attrs)) logits = only_where(in[3], logits);
  if (const Shape shape = logit_shape(in, attrs); logits.shape() != shape)
    logits = transpose(logits, shape);
  Tensor weights =
      weights_of(logits, operand_of(in, attrs, "sinks"), attrs.get<std::string>("memory_length"));
  if (may_hide_all(attrs))
    weights = where(seen, weights, constant(weights.graph(), 0, weights.dtype()));
  if (attrs.get<double>("dropout") > 0) {
    std::vector<Repeat> copies;
    const auto& counts = attrs.get<std::vector<int64_t>>("copies");
    const auto& copy = attrs.get<std::vector<int64_t>>("copy");
    for (size_t i = 0; i < counts.size(); ++i) copies.push_back({"copy", counts[i], copy[i]});
    weights = dropout_of_stream(weights, attrs.get<double>("dropout"), attrs.get<int64_t>("stream"),
                                copies);
  }
  return {einsum({cast(weights, in[0].dtype()), in[2]},
                 attended_shape(in[0].shape(), in[2].shape(), attrs))};
}

std::vector<ValueType> infer_plain_attention(const OpCall& call) {
  std::vector<ValueType> result = infer_attention(call);
  result.push_back(sums_type(call));
  return result;
}

Tensors attention_body(const Tensors& in, const Attrs& attrs) {
  const Tensor bias = bias_of_slopes(in, attrs);
  if (may_hide_all(attrs)) return attention_where(visible(in, attrs), bias, in, attrs);
  const Tensor logits = attention_logits(in, attrs, bias, visible(in, attrs));
  const Tensor log_sum = reduce_logsumexp(logits, {attrs.get<std::string>("memory_length")});
  const Tensor weights = exp(logits - log_sum);
  return {einsum({narrow(weights, in[0].dtype()), in[2]},
                 attended_shape(in[0].shape(), in[2].shape(), attrs)),
          transpose(log_sum, in[0].shape().without({attrs.get<std::string>("key_dim")}))};
}

Tensors attention_gradient(const GradCall& call) {
  Tensors d = attention_gradients(call, {});
  d.resize(call.in.size());
  return d;
}

/// Adds to the query the dims that only the others have, but for the values' own: examples that
/// share queries.
Tensor for_all(Tensor query, const Tensors& others, const std::string& value_dim,
               const AttentionOptions& o, Loc at) {
  std::vector<Dim> dims;
  for (const Tensor& t : others) {
    for (const Dim& d : t.shape()) {
      if (d.name != o.memory_length && d.name != value_dim && !query.shape().has(d.name) &&
          !Shape(dims).has(d.name))
        dims.push_back(d);
    }
  }
  if (dims.empty()) return query;
  for (const Dim& d : query.shape()) dims.push_back(d);
  return broadcast(query, Shape(dims), at);
}

/// Sets the dropout's random stream and the copies of the scope that draws from it.
void set_stream(Graph& g, Attrs& attrs) {
  std::vector<int64_t> counts, copy;
  for (const Repeat& r : copies_of_scopes(g)) {
    counts.push_back(r.count);
    copy.push_back(r.index);
  }
  attrs.set("stream", new_stream(g));
  attrs.set("copies", counts);
  attrs.set("copy", copy);
}

}  // namespace

extern const Op kAttention = {.name = "attention",
                              .infer = infer_plain_attention,
                              .zero_padding = 0b111000,
                              .gradient = attention_gradient,
                              .flops = attention_flops<1, 1>,
                              .body = attention_body,
                              .kernel = KernelKind::attention,
                              .emit = emit_attention,
                              .by_slices = attention_by_slices};
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
      for (const Tensor& t : {o.segments, o.memory_segments, o.prefix, o.sinks, o.slopes}) {
        if (!t.empty()) require_no_misspelling(query.shape(), t.shape(), meant);
      }
      if (!mask.empty()) {
        const Shape logits = query.shape().united(key.shape()).without({o.key_dim});
        require_no_misspelling(logits, mask.shape(), meant);
      }
    }
    require(o.dropout >= 0 && o.dropout < 1, "[attention] dropout {} is not in [0, 1) ({})",
            o.dropout, where(at));
    require(mask.empty() || !mask.shape().has(o.key_dim),
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
    query = for_all(query, in, own, o, at);
    in.insert(in.begin(), query);
    attrs.set("dropout", o.dropout);
    if (o.dropout > 0) set_stream(query.graph(), attrs);
    // A body does not know microbatches, whose random numbers must be those of the whole batch.
    if (o.dropout > 0 && !open_repeats(query.graph()).empty())
      return masked_attention_body(in, attrs)[0];
    bool plain = mask.empty() && o.dropout == 0;
    const Shape columns = own.empty() ? Shape{} : Shape{key.dim(o.key_dim), value.dim(own)};
    for (const Tensor& t : {key, value}) {
      for (const Dim& dim : t.shape().without(columns.names()))
        plain = plain && (dim.name == o.memory_length || query.shape().has(dim.name)) &&
                key.shape().has(dim.name) && value.shape().has(dim.name);
    }
    if (plain && !(o.prefix.empty() && o.sinks.empty()))
      return joined_attention(query, key, value, o, at);
    return query.graph().add(plain ? kAttention : kMaskedAttention, in, std::move(attrs), at)[0];
  });
}

}  // namespace tessera
