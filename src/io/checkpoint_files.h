// The directory of checkpoints: names, order, lock, retention.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "io/file.h"
#include "io/manifest.h"
#include "tessera/checkpoint.h"

namespace tessera {

inline constexpr const char* kVersionKey = "format_version";
inline constexpr const char* kStepKey = "step";
inline constexpr const char* kSerialKey = "serial";
inline constexpr const char* kDimsKey = "dims";

/// DIR/step-00000012, or DIR/step-00000012-2 and so on where that exists.
std::string new_checkpoint_path(const std::string& directory, int64_t step);
/// One more than the greatest serial number in the directory.
int64_t next_serial(const std::string& directory);
/// "rank-00003.safetensors".
std::string shard_name(int rank);

/// What a directory holds.
struct CheckpointScan {
  std::vector<Checkpoint> readable;  ///< the newest (greatest serial) first
  struct Unreadable {
    int64_t step;
    std::string why;
  };
  std::vector<Unreadable> unreadable;  ///< latest step first
  int64_t last_serial = 0;
};
CheckpointScan scan_checkpoints(const std::string& directory);

/// A checkpoint of format 1, or any safetensors file, as a manifest. Throw io errors.
Manifest manifest_of_one_file(const std::string& path);
Manifest manifest_of_safetensors(const std::string& path);
/// read_manifest() of a directory, manifest_of_safetensors() of a file.
Manifest manifest_of_any(const std::string& path);
/// What users see of a manifest.
Checkpoint checkpoint_of(const std::string& path, const Manifest& manifest);

enum class SaveStage { writing, written, cancelled };  ///< of all processes
/// Waits until all files exist in a directory; false if it was cancelled. Throws an io error if one
/// is not there a minute after all were written: then a rank writes somewhere else.
bool wait_for_files(const std::string& directory, const std::vector<std::string>& names,
                    const std::atomic<SaveStage>& stage);
/// Writes the manifest of the files in `temporary`, gives that directory the name of the
/// checkpoint, and removes all readable checkpoints but the newest `keep`. Returns a warning, or
/// "". Throws io errors.
std::string publish_checkpoint(const std::string& temporary, const std::vector<std::string>& names,
                               const Checkpoint& checkpoint, const std::string& directory,
                               int keep);

/// Takes the lock; it is held until the handle closes.
FileHandle lock_directory(const std::string& directory);
/// Removes what temporary checkpoints left. The caller holds the lock.
void remove_leftovers(const std::string& directory);
}  // namespace tessera
