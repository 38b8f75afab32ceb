// The best evaluation of a run: its checkpoint, and when to stop early.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "tessera/checkpoint.h"

namespace tessera::cli {

/// The evaluation with the lowest loss. The same in every process.
struct BestEvaluation {
  int64_t step = -1;  ///< -1: there was none
  double loss = 0;

  /// Takes up an evaluation; true if it is the lowest so far. A loss that is not finite never is.
  bool take(int64_t at, double value);
  /// Whether training ends before step `step` (from 0): `patience` evaluations, one every `every`
  /// steps, came after the best one, and none was lower. Never with 0.
  bool ends_before(int64_t next, int64_t every, int64_t patience) const;
  /// "200 1.7396": for the metadata of checkpoints.
  std::string to_string() const;
  /// Throws an io error that names `path`.
  static BestEvaluation parse(const std::string& text, const std::string& path);
};

}  // namespace tessera::cli
