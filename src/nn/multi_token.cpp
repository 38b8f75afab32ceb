// Losses of tokens further ahead. What belongs k places ahead is moved back by k: tokens, targets
// and weights, with zeros behind the end, where the weight says that nothing counts. Attention is
// causal, so what is computed there reaches no other place.
#include <cmath>

#include "nn/stored.h"
#include "nn/transformer_parts.h"

namespace tessera::nn {

namespace {

/// M [norm(h); norm(e)], M as the two matrices that h and e are multiplied with.
Tensor with_token(Tensor state, Tensor token, const TransformerOptions& o) {
  const auto part = [&](Tensor x, const char* name, const char* norm_name) {
    return projected(norm(x, norm_name, "d_model", o.norm), name, {"d_model"},
                     Shape{Dim("d_ahead", o.d_model)}, o, false, Loc::current(), std::sqrt(0.5));
  };
  return rename(part(state, "state", "state_norm") + part(token, "token", "token_norm"), "d_ahead",
                "d_model");
}

}  // namespace

Tensor loss_ahead(Graph& g, const TransformerOptions& o, const std::vector<SharedSpan>& spans,
                  const AheadInputs& in) {
  const DType exact = o.dtype == DType::float64 ? DType::float64 : DType::float32;
  const SharedSpan& span = spans[static_cast<size_t>(o.kind_of(o.layers - 1))];
  const std::string& length = span.length;
  const Tensor counted = in.weights.empty() ? constant(g, 1, exact, Shape{in.targets.dim(length)})
                                            : read_as(in.weights, exact);
  const auto ahead = [&](Tensor t, int64_t places) { return shift(t, length, -places); };
  const bool is_chained = o.ahead.kind == MultiTokenOptions::Kind::chained;
  Tensor state = in.last, sum;
  for (int64_t k = 1; k <= o.ahead.depth; ++k) {
    const Scope scope(g, "ahead", k - 1, o.ahead.depth);
    Tensor x = in.before_last;
    if (is_chained) x = with_token(state, embedded_tokens(o, ahead(in.tokens, k), in.embedding), o);
    x = transformer_block(x, o, span);
    if (o.placement != NormPlacement::after) x = norm(x, "norm", "d_model", o.norm);
    state = x;
    const Tensor targets = ahead(in.targets, k);
    Tensor weights = broadcast(ahead(counted, k), targets.shape());
    if (!in.segments.empty())
      weights = weights * cast(equal(ahead(in.segments, k), in.segments), exact);
    if (in.weights.empty()) weights = weights * one_of(targets, exact);
    const Tensor loss =
        o.loss_blocks > 1
            ? linear_cross_entropy(x, in.head, targets, weights, loss_blocks_of(o, length))
            : sum_all(read_as(cross_entropy(logits_of(x, o, in.head), targets, "vocab"), exact) *
                      weights);
    sum = sum.empty() ? loss : sum + loss;
  }
  return sum / static_cast<double>(o.ahead.depth);
}

}  // namespace tessera::nn
