// The gradient of attention, over all queries and keys or parts of them. The weights are recomputed
// from log_sum, and the softmax's correction term from out (Dao et al. 2022, algorithm 4). For a
// part, both are those of the whole.
#include "ops/attention.h"
#include "ops/infer.h"
#include "ops/precision.h"

namespace tessera {

namespace {

using Tensors = std::vector<Tensor>;

std::vector<ValueType> infer_attention_grad(const OpCall& call) {
  const ValueType result = infer_attention(call)[0];
  const ValueType sums = sums_type(call);
  for (size_t i : {3, 4})
    TESSERA_REQUIRE(call.in[i] == result, "the {} is {}; it must be {}",
                    i == 3 ? "gradient" : "result", describe(call.in[i]), describe(result));
  for (size_t i : {5, 6})
    TESSERA_REQUIRE(call.in[i] == sums, "{} is {}; of the query {} it is {}",
                    i == 5 ? "log_sum" : "products", describe(call.in[i]), describe(call.in[0]),
                    describe(sums));
  const size_t end = call.in.size() - structure_operands(call.attrs);
  if (end > 7) require_positions(call, 7, "query_start");
  if (end > 8) require_positions(call, 8, "key_start");
  std::vector<ValueType> grads = {call.in[0], call.in[1], call.in[2]};
  if (call.attrs.has("by_distance")) {
    const auto& entries = call.attrs.get<std::string>("by_distance");
    const ValueType& type = call.in[call.in.size() - segment_operands(call.attrs) - 1];
    grads.push_back({sums.shape.without({call.attrs.get<std::string>("length")})
                         .united(Shape{type.shape.dim(entries)}),
                     sums.dtype});
  }
  return grads;
}

// With W = exp(S - log_sum), S = scale q k: dv = W g, dW = g v, dS = W (dW - sum(g out)),
// dq = scale dS k, dk = scale dS q. With a cap c, S = c t with t = tanh(scale q k / c), and dS is
// multiplied by the slope 1 - t^2. With dropout D: dv = (D W) g, dW = D (g v).
Tensors attention_grad_body(const Tensors& in, const Attrs& attrs) {
  const Shape shape = logit_shape(in, attrs);
  const DType dtype = in[0].dtype();
  const size_t end = in.size() - structure_operands(attrs);
  const Tensor first_query = end > 7 ? in[7] : Tensor(), first_key = end > 8 ? in[8] : Tensor();
  const Tensor seen = visible(in, attrs, first_query, first_key);
  const Tensor products = scaled_products(in, attrs);
  const bool capped = attrs.has("soft_cap");
  const Tensor t = capped ? squashed(products, attrs) : Tensor();
  Tensor logits = capped ? t * attrs.get<double>("soft_cap") : products;
  if (const Tensor bias = bias_of_positions(in, attrs, first_query, first_key); !bias.empty())
    logits = logits + bias;
  Tensor weights = exp(logits - in[5]);
  if (!seen.empty()) weights = where(seen, weights, constant(weights.graph(), 0, weights.dtype()));
  const Tensor keep = kept_weights(in, attrs, first_query, first_key);
  const Tensor back =
      dropped(keep, wide(einsum({with_range(in[3]), with_range(in[2])}, shape)), attrs);
  Tensor of_logits = weights * (back - in[6]), of_entries;
  if (attrs.has("by_distance"))
    of_entries = scatter_add(entries_of_positions(in, attrs, first_query, first_key), of_logits,
                             entries_grad_shape(in, attrs), attrs.get<std::string>("by_distance"));
  if (capped) of_logits = of_logits * (1.0 - square(t));
  const Tensor d = narrow(of_logits * attrs.get<double>("scale"), dtype);
  Tensors result = {einsum({d, in[1]}, in[0].shape()), einsum({d, in[0]}, in[1].shape()),
                    einsum({narrow(dropped(keep, weights, attrs), dtype), in[3]}, in[2].shape())};
  if (!of_entries.empty()) result.push_back(of_entries);
  return result;
}

}  // namespace

// The gradient of log_sum contributes W times itself to dS = W (dW - sum(g out)).
Tensors attention_gradients(const GradCall& c, const Tensors& starts) {
  const Tensor grad = c.grads[0].empty()
                          ? broadcast(constant(c.graph, 0, c.out[0].dtype()), c.out[0].shape())
                          : c.grads[0];
  Tensor products = reduce_sum(wide(grad) * wide(c.out[0]), value_dim_of(c.attrs));
  if (!c.grads[1].empty()) products = products - c.grads[1];
  Tensors in = {c.in[0], c.in[1], c.in[2], grad, c.out[0], c.out[1], products};
  in.insert(in.end(), starts.begin(), starts.end());
  in.insert(in.end(), c.in.end() - static_cast<std::ptrdiff_t>(structure_operands(c.attrs)),
            c.in.end());
  Tensors d = c.graph.add(kAttentionGrad, in, c.attrs, Loc::current());
  if (!c.attrs.has("by_distance")) {
    d.resize(c.in.size());
    return d;
  }
  const size_t at = c.in.size() - segment_operands(c.attrs) - 1;
  const Tensor of_entries = d.back();
  const Shape& entries = c.in[at].shape();
  d.back() = Tensor();
  d.resize(c.in.size());
  const std::vector<std::string> rest = of_entries.shape().without(entries.names()).names();
  d[at] = rest.empty() ? of_entries : reduce_sum(of_entries, rest);
  if (d[at].shape() != entries) d[at] = transpose(d[at], entries);
  return d;
}

extern const Op kAttentionGrad = {.name = "attention_grad",
                                  .infer = infer_attention_grad,
                                  .zero_padding = 0b1111110000000,
                                  .flops = attention_flops<3, 2>,
                                  .body = attention_grad_body,
                                  .kernel = KernelKind::attention_grad,
                                  .emit = emit_attention,
                                  .sharded_body = attention_grad_sharded,
                                  .in_order = attends_in_order};

}  // namespace tessera
