// Saving while training. A save works in the background; what goes wrong there is noticed after one
// of the next steps, and the state that there is then is saved instead: it is newer than the copy
// that was not written.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "cli/flags.h"
#include "cli/progress.h"
#include "tessera/checkpoint.h"
#include "tessera/session.h"

namespace tessera::cli {

struct SavingFlags {
  std::string checkpoint;  ///< directory
  int64_t save_every = 0, keep = 3;
  double save_retry = 60;
  bool keep_best = false;  ///< the checkpoint of the lowest evaluation loss, too
  std::string staging;
  bool resume = false, allow_changes = false;
  void declare(FlagTable& table);
  /// Throws a usage error for flags that require each other.
  void require() const;
  /// Most bytes of a rank's save beside the run; 0 without checkpoints.
  int64_t most_staging() const;
};

/// The directory of --checkpoint, and that of --keep-best.
struct OpenCheckpoints {
  std::unique_ptr<Checkpoints> all, best = {};  ///< null: none
  std::optional<Checkpoint> latest = {};        ///< the newest one, if the job continues from it
};
/// Called before anything is written. Throws a usage error for a directory of another run.
OpenCheckpoints open_checkpoints(Cluster& cluster, const SavingFlags& flags);

/// Saves the state of a session. Without checkpoints it saves nothing.
class Saver {
 public:
  /// What a checkpoint holds besides tensors.
  using Metadata = std::map<std::string, std::string>;
  /// `metadata` tells it before a save of the state after so many steps, in all processes. What is
  /// passed must live as long as the object.
  Saver(const SavingFlags& flags, OpenCheckpoints checkpoints, Session& session, Progress& progress,
        std::function<Metadata(int64_t step)> metadata);

  bool is_on() const { return checkpoints_ != nullptr; }
  /// Loads the newest checkpoint that can be read. Collective.
  Checkpoint load_latest();
  /// Memory used by a save in the background, for the ranks of this process.
  int64_t staging_bytes() const;
  /// Starts a save of the state after `step` steps, once the save before is finished. Storage that
  /// fails is no reason to end the job: the first failure is told, and tend() tries again.
  /// Collective.
  void start(int64_t step);
  /// Whether this process has news about its saves: one failed, or a failed one is due again.
  /// Local.
  bool has_news() const;
  /// After a step, if a process has news: notices a failed save and starts it again, of the state
  /// that there is now; tells when it succeeds. Collective.
  void tend(int64_t step);
  /// Waits for the save that was started. False if storage failed, which is told and tried again.
  /// Collective.
  bool finish();
  /// Waits for the last save and, while it fails, tries again for --save-retry seconds. If the
  /// state after `step` steps is not saved then, says what is lost and returns kRequeue, else 0.
  /// Collective.
  int end(int64_t step);
  /// With --keep-best: saves the state after `step` steps, the best so far. Storage that fails is
  /// told, and leaves the best one before. Collective.
  void save_best(int64_t step);
  /// Gives a running save a few seconds to finish before an error ends the job. Local.
  void settle();
  bool has_failed() const { return failed_.tries > 0; }

 private:
  /// A save that failed because of storage. The same in every process but for `next`.
  struct FailedSave {
    int64_t tries = 0;    ///< failures in a row; 0: no save failed
    bool trying = false;  ///< another attempt is under way
    double next = 0;      ///< host_seconds() when to try again
  };
  bool storage_works(const std::function<void()>& work);
  bool try_until_saved(int64_t step);

  const SavingFlags& flags_;
  const std::unique_ptr<Checkpoints> checkpoints_, best_;
  Session& session_;
  Progress& progress_;
  const std::function<Metadata(int64_t step)> metadata_;
  FailedSave failed_;
};

}  // namespace tessera::cli
