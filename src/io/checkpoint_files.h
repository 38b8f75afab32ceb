// The directory of checkpoints: names, order, lock, removal of old ones.
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

/// DIR/step-00000012; if that exists, DIR/step-00000012-2 and so on.
std::string new_checkpoint_path(const std::string& directory, int64_t step);
/// The greatest serial number in the directory plus one.
int64_t next_serial(const std::string& directory);
/// "rank-00003.safetensors".
std::string shard_name(int rank);

/// The content of a directory.
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

/// A checkpoint of format 1, or any safetensors file, as a manifest. They throw io errors.
Manifest manifest_of_one_file(const std::string& path);
Manifest manifest_of_safetensors(const std::string& path);
/// read_manifest() for a directory, manifest_of_safetensors() for a file.
Manifest manifest_of_any(const std::string& path);
/// The public description of a manifest.
Checkpoint checkpoint_of(const std::string& path, const Manifest& manifest);

enum class SaveStage { writing, written, cancelled };  ///< over all processes
/// Waits until all files exist in a directory; false if cancelled. Throws an io error if one is
/// missing a minute after all were written: some rank then writes to another directory.
bool wait_for_files(const std::string& directory, const std::vector<std::string>& names,
                    const std::atomic<SaveStage>& stage);
/// Writes the manifest of the files in `temporary`, renames that directory to the checkpoint's
/// name, and removes all readable checkpoints but the newest `keep`. Returns a warning, or "".
/// Throws io errors.
std::string publish_checkpoint(const std::string& temporary, const std::vector<std::string>& names,
                               const Checkpoint& checkpoint, const std::string& directory,
                               int keep);

/// The right to write to a directory of checkpoints, held until it is destroyed.
struct DirectoryLock {
  FileHandle file, directory;
};
/// Takes it. Throws io errors: another process has it, or `lock` is a link or no regular file.
DirectoryLock lock_directory(const std::string& directory);
/// Removes leftover temporary checkpoints. The caller must hold the lock.
void remove_leftovers(const std::string& directory);
/// The state with the moving average of a parameter, as with_average() names it.
std::string average_name(const std::string& parameter);
/// Throws a usage error if the checkpoint `path` has no moving averages.
void require_averages(const Manifest& manifest, const std::string& path);

}  // namespace tessera
