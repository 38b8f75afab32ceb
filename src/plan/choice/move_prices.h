// What it costs to bring a tensor from one layout to another.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "cost/cost.h"
#include "lower/layout/reshard.h"

namespace tessera {

/// Times of the paths that Resharder finds. Dims that an axis does not divide count as padded.
class MovePrices {
 public:
  /// Keeps a reference.
  explicit MovePrices(const Costs& costs);

  /// All layouts of a tensor: each axis on one of its dims, or on none.
  std::vector<TensorLayout> layouts_of(const Shape& shape) const;
  /// Seconds of all collectives from each of `from` to each of `to`, one after the other, straight
  /// or by way of another layout of the tensor, whichever takes less: Resharder's paths send the
  /// fewest bytes, which may take longer than others. Row-major; kNever where there is no way. A
  /// value that is not partial becomes partial at no cost: it counts on one coordinate only.
  std::vector<double> seconds(const Shape& shape, DType dtype,
                              const std::vector<TensorLayout>& from,
                              const std::vector<TensorLayout>& to);
  static constexpr double kNever = 1e30;

 private:
  /// Tensors of equal sizes, and what is known of their moves, by the numbers of two layouts.
  struct Kind {
    Shape shape;
    DType dtype;
    std::vector<int> between;  ///< all its layouts
    std::unordered_map<uint64_t, double> straight = {}, least = {};
  };
  Kind& kind_of(const Shape& shape, DType dtype);
  int number_of(const TensorLayout& layout);
  double straight(Kind& kind, int from, int to);
  double least(Kind& kind, int from, int to);
  double price(const Shape& shape, DType dtype, const TensorLayout& from, const TensorLayout& to);

  const Costs& costs_;
  RuleLayouts rule_layouts_;
  Resharder resharder_;
  std::unordered_map<std::string, Kind> kinds_;
  std::vector<TensorLayout> layouts_;  ///< by number
  std::unordered_map<std::string, int> numbers_;
};

}  // namespace tessera
