// When the ranks compare their copies of parameters and state.
#pragma once

#include <cstdint>
#include <optional>

#include "tessera/session.h"

namespace tessera::cli {

class ReplicaCheck {
 public:
  /// Every `every` steps and before every save; 0: never; none: as often as takes 0.1 % of the
  /// time.
  explicit ReplicaCheck(std::optional<int64_t> every) : every_(every) {}
  /// After step `step` of `seconds`, before it is saved if it `saves`. Throws a device error where
  /// copies differ. Collective.
  void after_step(Session& session, int64_t step, double seconds, bool saves);

 private:
  void plan_next(Session& session, int64_t step, double seconds, double check_seconds);

  std::optional<int64_t> every_;
  int64_t next_ = -1;   ///< the step after which to compare if `every_` is none; -1: not known yet
  int64_t equal_ = -1;  ///< the last step after which copies were equal
};

}  // namespace tessera::cli
