// When the ranks compare their copies of parameters and state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "tessera/session.h"

namespace tessera::cli {

class ReplicaCheck {
 public:
  /// Before every save, and every `every` steps; 0: never; none: as often as takes 0.1 % of the
  /// time. `directory`: of the checkpoints, "" without them.
  ReplicaCheck(std::optional<int64_t> every, std::string directory)
      : every_(every), directory_(std::move(directory)) {}
  /// After step `step` of `seconds`. Throws a device error where copies differ, which names the
  /// last checkpoint whose copies were equal. Collective.
  void after_step(Session& session, int64_t step, double seconds);
  /// The same before the state after `step` steps is saved. Returns what its checkpoint says of it.
  std::string before_save(Session& session, int64_t step);
  /// The key of checkpoints that has this text: "equal after step 400", or "not compared".
  static constexpr const char* kKey = "replicas";

 private:
  void compare(Session& session, int64_t step);
  std::string last_good() const;
  void plan_next(Session& session, int64_t step, double seconds, double check_seconds);

  std::optional<int64_t> every_;
  std::string directory_;
  int64_t next_ = -1;   ///< the step after which to compare if `every_` is none; -1: not known yet
  int64_t equal_ = -1;  ///< the last step after which copies were equal
};

}  // namespace tessera::cli
