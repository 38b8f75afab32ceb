// Checkpoints: the parameters and state of a Session on disk, in logical coordinates, so that what
// one mesh and layout saved any other loads.
//
// One file per checkpoint, DIR/step-00001234.safetensors: every stored tensor under its name with
// its logical sizes, and this metadata (all values are text):
//   format_version  "1"
//   step            the step that was passed to save()
//   serial          1, 2, ... in the order of saving; the newest checkpoint of a directory is the
//   one with the
//                   greatest, so that a run which goes back to an older step does not resume from
//                   the abandoned branch
//   dims            JSON: {"tensor": ["dim", ...], ...}
// and whatever the caller adds: seed, resolved configuration, numerics key, ...
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "tessera/array.h"
#include "tessera/session.h"

namespace tessera {

/// A complete checkpoint on disk.
struct Checkpoint {
  std::string path;
  int64_t step = 0;
  std::map<std::string, std::string> metadata;  ///< all of it
  std::string warning;                          ///< "" or what the user should be told
};

/// Opens a checkpoint and validates its header and length. Local. Throws io errors: not a
/// safetensors file, truncated, not a checkpoint, or of a newer format version.
Checkpoint read_checkpoint(const std::string& path);

/// The newest checkpoint of a directory, or none if there is no file of a checkpoint's name (or no
/// directory). Files that cannot be read are skipped, and named in `warning` if one of them has a
/// later step; temporary files are ignored. Local. Throws an io error if there are checkpoints but
/// none can be read: starting over silently would be worse.
std::optional<Checkpoint> find_latest(const std::string& directory);

/// Overwrites every parameter and state of the Session and its step counter. Collective; every
/// process reads the file. Throws a usage error, in every process and before anything is changed,
/// that lists the names which the checkpoint lacks, has beyond the model, or has with another
/// dtype, dims or sizes; io errors, after which the parameters are a mixture if the file could not
/// be read to its end.
Checkpoint load_checkpoint(Session& session, const std::string& path);

/// One tensor of a safetensors file, with its dim names if the file is a checkpoint. Local. Throws
/// io errors.
Array read_tensor(const std::string& path, const std::string& name);

/// The directory that one job saves its checkpoints in. While the object lives the root process
/// holds a lock on DIR/lock, which the system releases if the process dies.
class Checkpoints {
 public:
  /// Creates the directory, takes the lock and removes temporary files of a job that died.
  /// Collective. Throws, in every process, a usage error if keep < 1, and io errors: the directory
  /// cannot be made, or another job holds the lock; the message has its pid and host.
  Checkpoints(Cluster& cluster, const std::string& directory, int keep = 3);
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;

  /// Writes DIR/step-<step>.safetensors and then removes the oldest checkpoints but `keep`.
  /// Collective: tensors are fetched one at a time, so that memory is one tensor; the root process
  /// writes. `extra` is added to the metadata. Throws, in every process, usage errors (step < 0; a
  /// key of `extra` that is used above) and an io error if anything cannot be written: the
  /// temporary file is removed and earlier checkpoints are untouched. An old checkpoint that cannot
  /// be removed is a warning.
  Checkpoint save(Session& session, int64_t step,
                  const std::map<std::string, std::string>& extra = {});
  /// find_latest() as the root process sees it, in every process. Collective.
  std::optional<Checkpoint> latest();
  /// load_checkpoint(). Collective.
  Checkpoint load(Session& session, const std::string& path) {
    return load_checkpoint(session, path);
  }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
