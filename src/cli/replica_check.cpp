#include "cli/replica_check.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/fail.h"
#include "base/files.h"
#include "tessera/checkpoint.h"
#include "tessera/inspect.h"

namespace tessera::cli {

void ReplicaCheck::after_step(Session& session, int64_t step, double seconds) {
  constexpr int64_t kFirst =
      10;  // steps before the first comparison of a run, which tells its cost
  if (session.cluster().size() == 1 || every_ == 0) return;
  if (next_ < 0) next_ = step + kFirst - 1;
  if (every_ ? step % *every_ != 0 : step < next_) return;
  const double begin = host_seconds();
  compare(session, step);
  if (!every_) plan_next(session, step, seconds, host_seconds() - begin);
}

std::string ReplicaCheck::before_save(Session& session, int64_t step) {
  if (session.cluster().size() == 1) return "there is one rank";
  if (every_ == 0) return "not compared";
  if (equal_ != step) compare(session, step);
  return fmt::format("equal after step {}", step);
}

void ReplicaCheck::compare(Session& session, int64_t step) {
  const std::string difference = replica_difference(session);
  if (!difference.empty()) {
    const std::string before = equal_ < 0 ? "they were not compared before in this run"
                                          : fmt::format("after step {} all were equal", equal_);
    fail(ErrorKind::device,
         "{} after step {}; {}. The memory or a processor of a machine is at fault, or a library "
         "adds in another order on one of them: {}, without that machine",
         difference, step, before, last_good());
  }
  equal_ = step;
}

std::string ReplicaCheck::last_good() const {
  if (!directory_.empty() && is_folder(directory_)) {
    for (const Checkpoint& checkpoint : find_checkpoints(directory_)) {
      const auto found = checkpoint.metadata.find(kKey);
      if (found == checkpoint.metadata.end() || found->second == "not compared") continue;
      return fmt::format(
          "the last checkpoint whose copies were equal is '{}'; continue from it "
          "(--resume)",
          checkpoint.path);
    }
  }
  return "no checkpoint is known to have equal copies: start anew";
}

/// All ranks take the costliest comparison and the shortest step of any, so that they agree.
void ReplicaCheck::plan_next(Session& session, int64_t step, double seconds, double check_seconds) {
  constexpr double kShare = 1e-3;
  std::vector<double> mine;
  for (int r = 0; r < session.cluster().local_ranks(); ++r)
    mine.insert(mine.end(), {check_seconds, seconds});
  const std::vector<double> all = session.cluster().gather(mine);
  double check = 0, shortest = all[1];
  for (size_t i = 0; i < all.size(); i += 2) {
    check = std::max(check, all[i]);
    shortest = std::min(shortest, all[i + 1]);
  }
  next_ = step + std::max<int64_t>(1, std::llround(std::ceil(check / (kShare * shortest))));
}

}  // namespace tessera::cli
