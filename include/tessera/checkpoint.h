// Checkpoints: the parameters and state of a Session on disk, in logical coordinates, so that what
// one mesh and layout saved any other loads.
//
// A checkpoint is a directory, DIR/step-00001234: for every rank that owns something a safetensors
// file rank-00003.safetensors with its parts of the tensors, and manifest.json, which says where
// each part belongs and has checksums of all files. The directory gets its name when everything is
// on disk; until then it is called step-00001234.tmp-... and is no checkpoint. The manifest's
// metadata (all values are text) are
//   format_version  "2"
//   step            the step that was passed to save()
//   serial          1, 2, ... in the order of saving; the newest checkpoint of a directory is the
//                   one with the greatest, so that a run which goes back to an older step does not
//                   resume from the abandoned branch, and no clock matters
// and whatever the caller adds: seed, resolved configuration, numerics key, ...
//
// Format 1, a single safetensors file with the whole tensors and the same metadata, is still read.
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
  std::string warning;                          ///< "" or what the user should be told
};

/// Opens a checkpoint and validates its manifest and the lengths of its files. Local. Throws io
/// errors: no checkpoint, a file that is missing or cut, or a newer format version.
Checkpoint read_checkpoint(const std::string& path);

/// The checkpoints of a directory, or the one that it is, the newest first. Those that cannot be
/// read are named in the `warning` of the newest if they have a later step; temporary ones are
/// ignored. Local. Throws an io error if there are checkpoints but none can be read: starting over
/// silently would be worse.
std::vector<Checkpoint> find_checkpoints(const std::string& directory);
/// Paths of all of these, those that cannot be read too, by step. Local.
std::vector<std::string> checkpoint_paths(const std::string& directory);
/// The first of these, or none if there is no checkpoint (or no directory).
std::optional<Checkpoint> find_latest(const std::string& directory);

/// Overwrites every parameter and state of the Session and its step counter. Collective; a process
/// reads only what its ranks hold, in blocks whose checksums are compared. Throws a usage error, in
/// every process and before anything is changed, that lists the names which the checkpoint lacks,
/// has beyond the model, or has with another dtype, dims or sizes; io errors (a damaged block:
/// which file, bytes and tensor), after which the parameters are a mixture.
Checkpoint load_checkpoint(Session& session, const std::string& path);
/// The same for what fits: parameters and state that the checkpoint has with the same name, dtype,
/// dims and sizes. The rest keeps its values; `warning` names it, and what of the checkpoint is
/// left. Throws a usage error where nothing fits.
Checkpoint load_fitting(Session& session, const std::string& path);
/// The same for some of the parameters and state; the checkpoint may have more. The step counter
/// stays.
Checkpoint load_tensors(Session& session, const std::string& path,
                        const std::vector<std::string>& names);

/// One tensor of a checkpoint or of any safetensors file, with its dim names if the file has them.
/// Local. Throws io errors.
Array read_tensor(const std::string& path, const std::string& name);

/// Reads every byte of a checkpoint and compares it with its checksums; returns what was verified,
/// in a line. Local. Throws io errors that name the first file, bytes and tensor that are damaged.
std::string verify_checkpoint(const std::string& path);
/// Shape and parts of every tensor, files, metadata, in lines. Local. Throws io errors.
std::string describe_checkpoint(const std::string& path);

struct ConvertOptions {
  bool all = false;  ///< optimizer state too, where the checkpoint says what are parameters
  /// New names: each (glob, replacement) with at most one * in both, the first that matches.
  std::vector<std::pair<std::string, std::string>> names;
};
/// Between a checkpoint and a single safetensors file of whole tensors, with the metadata "format":
/// "pt" and the names that other programs expect; which is which is seen from `from`: a directory,
/// or a file. A file becomes a checkpoint of step 0 without dim names, which fits by sizes. One
/// tensor at a time is held. Local. Returns the tensors written. Throws io errors, and usage errors
/// for an existing `to` and for two tensors that would have one name.
int64_t convert_checkpoint(const std::string& from, const std::string& to,
                           const ConvertOptions& options = {});

/// The directory that one job saves its checkpoints in. While the object lives the root process
/// holds a lock on DIR/lock, which the system releases if the process dies.
class Checkpoints {
 public:
  static constexpr int64_t kStaging = int64_t{1} << 30;

  /// Creates the directory, takes the lock and removes what a job that died left. `staging` is the
  /// most bytes of memory that a process uses to save beside the run. Collective. Throws, in every
  /// process, a usage error if keep < 1, and io errors: the directory cannot be made, or another
  /// job holds the lock; the message has its pid and host.
  Checkpoints(Cluster& cluster, const std::string& directory, int keep = 3,
              int64_t staging = kStaging);
  /// A save that was not finished is given up: its temporary directory stays for the next job.
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;

  /// Begins to save: finish() of the save before, an agreement on the name, and then, without any
  /// communication, a copy of what the ranks of this process own. It returns when the copy is
  /// taken, at once if `staging` holds all of it; else it waits for the disk to take the rest. A
  /// thread writes, and the one of the root process publishes the checkpoint when all files are
  /// there, and then removes the oldest checkpoints but `keep`. `extra` is added to the metadata.
  /// Collective. Throws, in every process, usage errors (step < 0; a key of `extra` that is used
  /// above), io errors, and those of the save before.
  void start(Session& session, int64_t step, const std::map<std::string, std::string>& extra = {});
  /// Waits until the save that was started is published; none if there is none. Collective. Throws,
  /// in every process, an io error if anything could not be written: then what was written of it is
  /// removed and earlier checkpoints are untouched. An old checkpoint that cannot be removed is a
  /// warning.
  std::optional<Checkpoint> finish();
  /// Gives a save that was started a chance to be published without another word of the ranks: for
  /// a job that an error ends. Waits at most so long; what failed is removed by the root. Local.
  void settle(double seconds);
  /// start() and finish().
  Checkpoint save(Session& session, int64_t step,
                  const std::map<std::string, std::string>& extra = {});
  /// Whether a save is under way in this process. Local.
  bool is_saving() const;
  /// Bytes that the ranks of this process write, and the most that start() stages of them. Local.
  static int64_t owned_bytes(Session& session);

  /// find_latest() as the root process sees it, in every process. Collective.
  std::optional<Checkpoint> latest();
  /// Loads the newest checkpoint that can be read in full; those that cannot are named in its
  /// warning. None if there is no checkpoint. Collective. Throws as load_checkpoint(), or with
  /// `fitting` as load_fitting(), which then loads, and the first io error if none can be read.
  std::optional<Checkpoint> load_latest(Session& session, bool fitting = false);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
