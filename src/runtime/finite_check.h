// Which result is the first that is not finite.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "runtime/rank_memory.h"

namespace tessera {

/// Whether the first element of `view` is finite.
bool is_finite(const RankContext& rank, const RankMemory& memory, const View& view);

/// Follows through the steps of a run what is not finite.
class NonFiniteSearch {
 public:
  /// sources: of tensors of the model, their lines; or null.
  NonFiniteSearch(const RankContext& rank, const RankMemory& memory,
                  const std::map<std::string, std::string>* sources)
      : rank_(rank), memory_(memory), sources_(sources) {}
  /// Looks at the results of `step`, which has just run.
  void examine(const Step& step);
  /// Counts results that another rank examines, so that positions are comparable: those of an
  /// iteration that is another pipeline stage's.
  void skip(int64_t results) { examined_ += results; }
  /// After the last step: looks for the cause of what `guard` holds.
  void conclude(const View& guard);
  /// The position of the cause among all results that were examined, loops iteration by iteration,
  /// the less certain ones behind all others; INT64_MAX: this rank has none.
  int64_t position() const { return cause_.position; }
  const std::string& message() const { return cause_.message; }

 private:
  struct Cause {
    int64_t position = INT64_MAX;
    std::string message = "";
  };
  static constexpr int64_t kSent = int64_t{1} << 60, kArrived = int64_t{1} << 61;
  std::string text(const Step& step, const View& result, int64_t element) const;

  const RankContext& rank_;
  const RankMemory& memory_;
  const std::map<std::string, std::string>* sources_;
  int64_t examined_ = 0;
  std::map<int, Cause> bad_;  ///< by buffer
  Cause sent_;                ///< the earliest that a collective has taken to other ranks
  Cause cause_;
};

}  // namespace tessera
