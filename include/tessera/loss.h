// What a training step minimizes, and what it reports besides.
#pragma once

#include <string>
#include <vector>

#include "tessera/graph.h"

namespace tessera {

/// A number that a training step reports: the dropped share of a mixture of experts, an accuracy.
struct Metric {
  std::string name;    ///< in the log: "accuracy"
  Tensor value;        ///< scalar
  Tensor weight = {};  ///< optional scalar, as for Loss
};

/// A loss, with or without a weight. Without, `value` is a mean over examples, and the loss of a
/// step is the mean over its microbatches. With one, `value` is a sum, say over the tokens that
/// count, `weight` is their number, and the loss of a step is the sum of the values over the sum of
/// the weights of all microbatches. So a token counts the same in whichever microbatch it is. No
/// gradient goes through the weight. If all weights are 0, loss and gradients are 0. Metrics are
/// averaged by the same rule. `outputs`, such as logits, are returned for the whole batch: see
/// over_microbatches().
///     minimize({sum_all(losses * mask), sum_all(mask)}, lr, adam());
struct Loss {
  Loss(Tensor value, Tensor weight = {}, std::vector<Metric> metrics = {},
       std::vector<Tensor> outputs = {})
      : value(value), weight(weight), metrics(std::move(metrics)), outputs(std::move(outputs)) {}
  Tensor value, weight;
  std::vector<Metric> metrics;
  std::vector<Tensor> outputs;
};

}  // namespace tessera
