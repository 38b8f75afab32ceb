// cross_entropy: a composite whose body is its definition.
#include <cmath>

#include "ir/source_ops.h"
#include "ops/infer.h"
#include "ops/precision.h"
#include "ops/sum_to.h"
#include "tessera/ops.h"

namespace tessera {

namespace {

using Tensors = std::vector<Tensor>;

std::vector<ValueType> infer_cross_entropy(const OpCall& call) {
  const auto& classes = call.attrs.get<std::string>("classes");
  const ValueType &logits = call.in[0], &labels = call.in[1];
  TESSERA_REQUIRE(is_floating(logits.dtype), "the logits are {}; they must be floating",
                  to_string(logits.dtype));
  require_dims(logits.shape, {classes}, "class");
  require_same_sizes(call);
  const bool soft = is_floating(labels.dtype);
  TESSERA_REQUIRE(soft || labels.dtype == DType::int32 || labels.dtype == DType::int64,
                  "the labels are {}; they must be int32 or int64, or floating for soft labels",
                  to_string(labels.dtype));
  TESSERA_REQUIRE(!soft || labels.dtype == logits.dtype,
                  "soft labels are {} but the logits are {}; use cast()", to_string(labels.dtype),
                  to_string(logits.dtype));
  const Shape expected = soft ? logits.shape : logits.shape.without({classes});
  bool same = labels.shape.rank() == expected.rank();
  for (const Dim& d : expected) same = same && labels.shape.has(d.name);
  TESSERA_REQUIRE(same, "the labels are {}; {} labels of logits {} have the dims {}",
                  labels.shape.to_string(), soft ? "soft" : "integer", logits.shape.to_string(),
                  expected.to_string());
  const DType dtype = is_narrow(logits.dtype) ? DType::float32 : logits.dtype;
  return {{logits.shape.without({classes}), dtype}};
}

/// Logits by their largest, which leaves a loss as it is: what would cancel does not arise. All in
/// float32 at least.
struct Shifted {
  Tensor top;          ///< 0 where the largest is not finite
  Tensor logits;       ///< minus top
  Tensor exponential;  ///< of `logits`
  Tensor sum;          ///< of these: from 1 to the number of classes
};
Shifted shifted_of(const Tensor& given, const std::string& classes) {
  const Tensor logits = wide(given), most = reduce_max(logits, classes),
               top = stop_gradient(where(is_finite(most), most, 0.0)), below = logits - top,
               e = exp(below);
  return {top, below, e, reduce_sum(e, classes)};
}

// With x = logits - max and s = log(sum(exp(x))): s - x[label] + z (s + max)^2; soft labels, whose
// terms have one sign: sum(p (s - x)).
Tensors cross_entropy_body(const Tensors& in, const Attrs& attrs) {
  const auto& classes = attrs.get<std::string>("classes");
  const double z = attrs.get<double>("z_loss");
  const Shifted x = shifted_of(in[0], classes);
  const Tensor log_sum = log(x.sum);
  Tensor loss;
  if (is_floating(in[1].dtype())) {
    const Tensor p = wide(in[1]);
    loss = log_sum * reduce_sum(p, classes) - reduce_sum(p * x.logits, classes);
  } else {
    // Not linear: where ranks have parts of the classes, they add theirs before `top` is
    // subtracted.
    const Tensor own = maximum(wide(gather(in[0], in[1], classes)), -INFINITY);
    loss = log_sum - (own - x.top);
  }
  if (z != 0) loss = loss + square(log_sum + x.top) * z;
  return {loss.shape() == x.top.shape() ? loss : transpose(loss, x.top.shape())};
}

// d/dlogits = (softmax (1 + 2 z lse) - one_hot) g; soft labels: (softmax (sum(p) + 2 z lse) - p) g,
// and (s - x) g for p.
Tensors cross_entropy_gradient(const GradCall& c) {
  const auto& classes = c.attrs.get<std::string>("classes");
  const double z = c.attrs.get<double>("z_loss");
  const Shifted x = shifted_of(c.in[0], classes);
  const Tensor g = c.grads[0], log_sum = log(x.sum);
  const bool integer = !is_floating(c.in[1].dtype());
  Tensor target = integer ? one_hot(c.in[1], c.in[0].dim(classes), 1, 0, g.dtype()) : wide(c.in[1]);
  Tensor factor = integer ? constant(c.graph, 1, g.dtype()) : reduce_sum(target, classes);
  if (z != 0) factor = factor + (log_sum + x.top) * (2 * z);
  const Tensor grad = sum_to((x.exponential * (factor / x.sum) - target) * g, c.in[0].shape());
  Tensor labels_grad = integer ? Tensor() : sum_to((log_sum - x.logits) * g, c.in[1].shape());
  if (!integer) labels_grad = narrow(labels_grad, c.in[1].dtype());
  return {narrow(grad, c.in[0].dtype()), labels_grad};
}

}  // namespace

extern const Op kCrossEntropy = {.name = "cross_entropy",
                                 .infer = infer_cross_entropy,
                                 .gradient = cross_entropy_gradient,
                                 .body = cross_entropy_body};

Tensor cross_entropy(Tensor logits, Tensor labels, const std::string& classes, double z_loss,
                     Loc at) {
  return one(kCrossEntropy, {logits, labels}, {{"classes", classes}, {"z_loss", z_loss}}, at);
}

}  // namespace tessera
