// Checkpoints: parameters and state of a Session on disk, in logical coordinates. A checkpoint can
// be loaded on any mesh and layout, whatever mesh and layout saved it.
//
// A checkpoint is a directory, DIR/step-00001234. It contains one safetensors file for every rank
// that owns something (rank-00003.safetensors) with its parts of the tensors, and manifest.json,
// which has the place of each part and checksums of all files. The directory is called
// step-00001234.tmp-... until everything is on disk; then it is renamed. The manifest's metadata
// (all values are text) are
//   format_version  "2"
//   step            the step that was passed to save()
//   serial          1, 2, ... in the order of saving. The newest checkpoint is the one with the
//                   greatest serial: a run that went back to an older step does not resume from
//                   the abandoned branch, and clocks do not matter
// and what the caller adds: seed, resolved configuration, numerics key, ...
//
// Format 1, a single safetensors file with whole tensors and the same metadata, can still be read.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/array.h"
#include "tessera/session.h"

namespace tessera {

/// A complete checkpoint on disk.
struct Checkpoint {
  std::string path;
  int64_t step = 0;
  std::map<std::string, std::string> metadata;  ///< all of it
  std::string warning;                          ///< "" or a message for the user
};

/// Opens a checkpoint and validates its manifest and the lengths of its files. Local. Throws io
/// errors: not a checkpoint, a missing or truncated file, a newer format version.
Checkpoint read_checkpoint(const std::string& path);

/// The checkpoints in `directory` (or `directory` itself if it is one), newest first. Unreadable
/// ones of a later step are named in the newest's `warning`; temporary ones are ignored. Local.
/// Throws an io error if there are checkpoints but none can be read, so that training does not
/// silently start over.
std::vector<Checkpoint> find_checkpoints(const std::string& directory);
/// Paths of all checkpoints in `directory`, also unreadable ones, sorted by step. Local.
std::vector<std::string> checkpoint_paths(const std::string& directory);
/// The first of find_checkpoints(), or none if there is no checkpoint (or no directory).
std::optional<Checkpoint> find_latest(const std::string& directory);

/// Overwrites all parameters and state of the Session and its step counter. Collective; each
/// process reads only the parts of its ranks and verifies their checksums. Throws, in every
/// process, a usage error before anything is changed: it lists names that are missing in the
/// checkpoint, names that the model lacks, and tensors with another dtype, dims or sizes. Throws io
/// errors (a damaged block, with file, bytes and tensor), after which parameters are partly
/// overwritten.
Checkpoint load_checkpoint(Session& session, const std::string& path);
/// Loads the parameters and state whose name, dtype, dims and sizes match. The others keep their
/// values; `warning` names them, and the tensors of the checkpoint that were not used. Collective.
/// Throws a usage error if nothing matches.
Checkpoint load_fitting(Session& session, const std::string& path);
/// Loads only the named parameters and state; the checkpoint may have more. Keeps the step counter.
/// Collective.
Checkpoint load_tensors(Session& session, const std::string& path,
                        const std::vector<std::string>& names);
/// The same, but parameters that have moving averages (with_average()) get those. Throws a usage
/// error if the checkpoint has none.
Checkpoint load_averages(Session& session, const std::string& path,
                         const std::vector<std::string>& names);

/// Reads one tensor of a checkpoint or of any safetensors file, with its dim names if the file has
/// them. Local. Throws io errors.
Array read_tensor(const std::string& path, const std::string& name);

/// Reads a whole checkpoint and verifies its checksums. Returns a one-line summary. Local. Throws
/// io errors that name the first damaged file, bytes and tensor.
std::string verify_checkpoint(const std::string& path);
/// Describes every tensor (shape and parts), the files and the metadata. Local. Throws io errors.
std::string describe_checkpoint(const std::string& path);

struct ConvertOptions {
  bool all = false;  ///< also optimizer state; else only parameters, if the checkpoint lists them
  /// Renaming rules (glob, replacement), with at most one * in each; the first match applies.
  std::vector<std::pair<std::string, std::string>> names;
};
/// Converts a checkpoint (a directory) into one safetensors file of whole tensors, with the
/// metadata "format": "pt" that other programs expect, or such a file into a checkpoint. The kind
/// of `from` decides. A file becomes a checkpoint of step 0 without dim names; tensors are then
/// matched by sizes. Holds one tensor in memory at a time. Local. Returns the number of tensors
/// written. Throws io errors, and usage errors if `to` exists and if two tensors would get the same
/// name.
int64_t convert_checkpoint(const std::string& from, const std::string& to,
                           const ConvertOptions& options = {});

/// The directory in which one job saves its checkpoints. While the object lives, the root process
/// holds a lock on DIR/lock. The system releases it if the process dies.
class Checkpoints {
 public:
  static constexpr int64_t kStaging = int64_t{1} << 30;

  /// Creates the directory, takes the lock and removes the leftovers of jobs that died. `keep`: how
  /// many checkpoints to keep. `staging`: maximum bytes of memory that a process uses for a save in
  /// the background. Collective. Throws, in every process, a usage error if keep < 1, and io errors
  /// if the directory cannot be made or another job holds the lock (with its pid and host).
  Checkpoints(Cluster& cluster, const std::string& directory, int keep = 3,
              int64_t staging = kStaging);
  /// Abandons an unfinished save. The next job removes its temporary directory.
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;

  /// Starts a save. First finishes the previous save and agrees on the name; then copies what the
  /// ranks of this process own, without communication. Returns when the copy is taken: at once if
  /// it fits into `staging`, else after the rest went to disk. A background thread writes the
  /// files; that of the root process publishes the checkpoint when all files are there and then
  /// removes all but the newest `keep` checkpoints. `extra` is added to the metadata. Collective.
  /// Throws, in every process, usage errors (step < 0; a reserved key in `extra`), io errors, and
  /// errors of the previous save.
  void start(Session& session, int64_t step, const std::map<std::string, std::string>& extra = {});
  /// Waits until the save that was started is published and returns it; none if no save was
  /// started. Collective. Throws, in every process, an io error if writing failed: its files are
  /// then removed, and earlier checkpoints are untouched. If an old checkpoint cannot be removed,
  /// that is only a warning.
  std::optional<Checkpoint> finish();
  /// Waits at most `seconds` for a started save to be published, without communication: for a job
  /// that ends with an error. The root removes a failed save. Local.
  void settle(double seconds);
  /// start() and finish().
  Checkpoint save(Session& session, int64_t step,
                  const std::map<std::string, std::string>& extra = {});
  /// Whether a save is under way in this process. Local.
  bool is_saving() const;
  /// Whether this process has failed to write its part of the save that was started. finish() then
  /// throws the failure, and start() can be called again. Local.
  bool has_failed() const;
  /// Bytes that the ranks of this process write, the maximum that start() stages. Local.
  static int64_t owned_bytes(Session& session);

  /// find_latest() of the root process, in every process. Collective.
  std::optional<Checkpoint> latest();
  /// Loads the newest checkpoint that can be read completely. Its `warning` names unreadable newer
  /// ones. None if there is no checkpoint. Collective. Throws as load_checkpoint(), or with
  /// `fitting` as load_fitting(); throws the first io error if none can be read.
  std::optional<Checkpoint> load_latest(Session& session, bool fitting = false);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
