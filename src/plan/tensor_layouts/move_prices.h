// What it costs to bring a tensor from one layout to another.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "lower/layout/reshard.h"
#include "plan/tensor_layouts/step_sum.h"

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
  /// value that is not partial becomes partial at no cost: it counts on one coordinate only. With
  /// weights what is sent counts so much, without the starts. `link`: of the chain, or -1.
  std::vector<double> seconds(const Shape& shape, DType dtype,
                              const std::vector<TensorLayout>& from,
                              const std::vector<TensorLayout>& to, Phase phase = Phase::before,
                              int link = -1);
  void set_weights(const ByPhase<StepWeights>& weights);
  /// What is sent on the way that takes least.
  LeastTimes least(const Shape& shape, DType dtype, const TensorLayout& from,
                   const TensorLayout& to, Phase phase, int link);
  static constexpr double kNever = 1e30;

 private:
  struct MoveTimes {
    double seconds = 0;  ///< starts included
    LeastTimes least = {};
  };
  /// What a second of a move counts depends on its phase and on the link that it is.
  struct Slot {
    Phase phase;
    int link;
    auto operator<=>(const Slot&) const = default;
  };
  /// Tensors of equal sizes, and what is known of their moves, by the numbers of two layouts.
  struct Kind {
    Shape shape;
    DType dtype;
    std::vector<int> between;  ///< all its layouts
    std::unordered_map<uint64_t, MoveTimes> moves = {};
    struct Known {
      std::unordered_map<uint64_t, double> straight = {}, least = {};
      std::unordered_map<uint64_t, int> by = {};  ///< the layout between; none: straight
    };
    std::map<Slot, Known> known = {};
  };
  Kind& kind_of(const Shape& shape, DType dtype);
  int number_of(const TensorLayout& layout);
  double straight(Kind& kind, int from, int to, Slot slot);
  double least(Kind& kind, int from, int to, Slot slot);
  MoveTimes price(const Shape& shape, DType dtype, const TensorLayout& from,
                  const TensorLayout& to);

  const Costs& costs_;
  RuleLayouts rule_layouts_;
  Resharder resharder_;
  std::unordered_map<std::string, Kind> kinds_;
  bool has_weights_ = false;
  ByPhase<StepWeights> weights_;
  std::vector<TensorLayout> layouts_;  ///< by number
  std::unordered_map<std::string, int> numbers_;
};

}  // namespace tessera
