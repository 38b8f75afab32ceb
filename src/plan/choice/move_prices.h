// What it costs to bring a tensor from one layout to another.
#pragma once

#include <string>
#include <unordered_map>

#include "cost/cost.h"
#include "lower/layout/reshard.h"

namespace tessera {

/// Times of the paths that Resharder finds. Dims that an axis does not divide count as padded.
class MovePrices {
 public:
  /// Keeps a reference.
  explicit MovePrices(const Costs& costs);

  /// Seconds of all collectives from `from` to `to`, one after the other; kNever if there is no
  /// way. A value that is not partial becomes partial at no cost: it counts on one coordinate only.
  double seconds(const Shape& shape, DType dtype, const TensorLayout& from, const TensorLayout& to);
  static constexpr double kNever = 1e30;

 private:
  double price(const Shape& shape, DType dtype, const TensorLayout& from, const TensorLayout& to);
  const Costs& costs_;
  RuleLayouts rule_layouts_;
  Resharder resharder_;
  std::unordered_map<std::string, double> known_;
};

}  // namespace tessera
