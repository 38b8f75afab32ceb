// Which variant of a Program runs.
#pragma once

#include <cstdint>
#include <vector>

#include "lower/lower.h"

namespace tessera {

/// lower(). If options.variant.dispatch_chunks is 0, there are two if by options.seconds the
/// Program is faster then, else one.
Program lower_chosen(const Graph& graph, LowerOptions options);

/// True if a step counts more rows than the capacity of a dispatch, and a larger one would help.
bool has_capacities(const Function& function);

/// The Programs of a graph that differ in the capacities of dispatches: each has kCapacityGrowth
/// times as many places as the one before, the last has places for all rows. So they have the same
/// ports and scalars. Without a dispatch there is one.
class ProgramVariants {
 public:
  static constexpr double kCapacityGrowth = 4;

  /// Lowers all of them, beginning with options.variant.
  ProgramVariants(const Graph& graph, LowerOptions options);

  /// The one that runs: at first the one with the smallest capacities.
  const Program& program() const { return programs_[current_]; }
  bool has_next() const { return current_ + 1 < programs_.size(); }
  /// Goes on with larger capacities, and back.
  void next();
  void back();
  /// How many times the first one's places the running one has.
  double growth() const;
  /// Of all Programs.
  uint64_t hash() const;

 private:
  std::vector<Program> programs_;
  size_t current_ = 0;
};

}  // namespace tessera
