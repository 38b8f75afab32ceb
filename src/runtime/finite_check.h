// Which result is the first that is not finite.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/rank_memory.h"

namespace tessera {

/// Whether the first element of `view` is finite.
bool is_finite(const RankContext& rank, const RankMemory& memory, const View& view);

/// Looks at the results of steps, in the order in which they run, until one is not finite.
class NonFiniteSearch {
 public:
  NonFiniteSearch(const RankContext& rank, const RankMemory& memory)
      : rank_(rank), memory_(memory) {}
  /// Looks at the results of `step`, which has just run, and notes the first that is not finite.
  void examine(const Step& step);
  /// The position of what was found among all results that were examined, loops iteration by
  /// iteration; INT64_MAX: nothing was.
  int64_t position() const { return position_; }
  const std::string& message() const { return message_; }

 private:
  std::string examine_result(const Step& step) const;

  const RankContext& rank_;
  const RankMemory& memory_;
  int64_t examined_ = 0, position_ = INT64_MAX;
  std::string message_;
};

}  // namespace tessera
