// The newest checkpoint is the one saved last, not the one of the greatest step: its metadata has
// the greatest serial number. Unreadable files are never removed, as they may be all that is left
// of a long run.
#include "io/checkpoint_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <filesystem>

#include "base/fail.h"
#include "base/files.h"

namespace tessera {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-", kSuffix = ".safetensors";

/// The non-negative number that the whole `text` is, or -1.
int64_t parse_number(std::string_view text) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0 ? value : -1;
}

/// The step of "step-00000012", "step-00000012-2" or "step-00000012.safetensors", or -1.
int64_t step_of(std::string_view file) {
  if (!file.starts_with(kPrefix)) return -1;
  file.remove_prefix(kPrefix.size());
  if (file.ends_with(kSuffix)) file.remove_suffix(kSuffix.size());
  const size_t dash = file.find('-');
  if (dash != file.npos && parse_number(file.substr(dash + 1)) < 2) return -1;
  return parse_number(file.substr(0, dash));
}

/// File names in a directory; empty if it does not exist.
std::vector<std::string> files_of(const std::string& directory) {
  return is_there(directory) ? names_in(directory) : std::vector<std::string>();
}

}  // namespace

std::string new_checkpoint_path(const std::string& directory, int64_t step) {
  const std::string name = fmt::format("{}{:08}", kPrefix, step);
  fs::path path = fs::path(directory) / name;
  // A link without a target is in the way, too.
  for (int n = 2; is_taken(path); ++n) path = fs::path(directory) / fmt::format("{}-{}", name, n);
  return path.string();
}

int64_t next_serial(const std::string& directory) {
  return scan_checkpoints(directory).last_serial + 1;
}

std::string shard_name(int rank) { return fmt::format("rank-{:05}.safetensors", rank); }

Checkpoint checkpoint_of(const std::string& path, const Manifest& manifest) {
  Checkpoint checkpoint{path, manifest.step, manifest.metadata, ""};
  checkpoint.metadata[kVersionKey] = manifest.has_checksums ? "2" : "1";
  checkpoint.metadata[kStepKey] = std::to_string(manifest.step);
  checkpoint.metadata[kSerialKey] = std::to_string(manifest.serial);
  return checkpoint;
}

Checkpoint read_checkpoint(const std::string& path) {
  return checkpoint_of(path, read_manifest(path));
}

CheckpointScan scan_checkpoints(const std::string& directory) {
  CheckpointScan scan;
  std::vector<std::pair<int64_t, Checkpoint>> found;
  for (const std::string& name : files_of(directory)) {
    const int64_t step = step_of(name);
    if (step < 0) continue;
    try {
      const std::string path = (fs::path(directory) / name).string();
      const Manifest manifest = read_manifest(path);
      found.emplace_back(manifest.serial, checkpoint_of(path, manifest));
      scan.last_serial = std::max(scan.last_serial, manifest.serial);
    } catch (const Error& e) {
      scan.unreadable.push_back({step, e.what()});
    }
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first, a.second.step) > std::pair(b.first, b.second.step);
  });
  for (auto& [serial, checkpoint] : found) scan.readable.push_back(std::move(checkpoint));
  std::sort(scan.unreadable.begin(), scan.unreadable.end(),
            [](const auto& a, const auto& b) { return a.step > b.step; });
  return scan;
}

std::vector<Checkpoint> find_checkpoints(const std::string& directory) {
  if (is_there(fs::path(directory) / kManifestName)) return {read_checkpoint(directory)};
  CheckpointScan scan = scan_checkpoints(directory);
  if (scan.readable.empty()) {
    if (scan.unreadable.empty()) return {};
    fail(ErrorKind::io,
         "[checkpoint] none of the {} checkpoint(s) in '{}' can be read; move them away to start "
         "over; the latest: {}",
         scan.unreadable.size(), directory, scan.unreadable[0].why);
  }
  Checkpoint& newest = scan.readable[0];
  for (const auto& bad : scan.unreadable) {
    if (bad.step <= newest.step) continue;
    newest.warning += fmt::format("{}skipped a later checkpoint that cannot be read: {}",
                                  newest.warning.empty() ? "" : "; ", bad.why);
  }
  return std::move(scan.readable);
}

std::vector<std::string> checkpoint_paths(const std::string& directory) {
  if (is_there(fs::path(directory) / kManifestName)) return {directory};
  std::vector<std::string> paths;
  for (const std::string& name : files_of(directory)) {
    if (step_of(name) >= 0) paths.push_back((fs::path(directory) / name).string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::optional<Checkpoint> find_latest(const std::string& directory) {
  std::vector<Checkpoint> all = find_checkpoints(directory);
  if (all.empty()) return std::nullopt;
  return std::move(all[0]);
}

namespace {

/// 1: this process holds the lock of `file` now; 0: another does; -1: it cannot be locked.
int try_lock(const FileHandle& file) {
  if (flock(file.get(), LOCK_EX | LOCK_NB) == 0) return 1;
  return errno == EWOULDBLOCK ? 0 : -1;
}

}  // namespace

// The directory itself is locked, too: whoever removes the file does not let a second job in. Some
// file systems lock files alone.
DirectoryLock lock_directory(const std::string& directory) {
  const std::string path = (fs::path(directory) / "lock").string();
  DirectoryLock lock;
  lock.file = FileHandle(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666));
  if (!lock.file) {
    fail(ErrorKind::io, "[checkpoint] cannot open '{}': {}; {}", path, system_message(errno),
         errno == ELOOP ? "it is a link, which Tessera never makes: remove it"
                        : "choose a directory that can be written");
  }
  struct stat status {};
  if (fstat(lock.file.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_nlink != 1)
    fail(ErrorKind::io,
         "[checkpoint] '{}' is no regular file with one name, as Tessera makes it; remove it",
         path);
  lock.directory = FileHandle(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const int locked = try_lock(lock.file), error = errno;
  if (locked < 0) {
    fail(ErrorKind::io, "[checkpoint] cannot lock '{}': {}; choose a file system with locks", path,
         system_message(error));
  }
  if (locked == 0 || try_lock(lock.directory) == 0) {
    char holder[HOST_NAME_MAX + 64];
    const ssize_t bytes = pread(lock.file.get(), holder, sizeof(holder), 0);
    std::string_view who(holder, bytes > 0 ? static_cast<size_t>(bytes) : 0);
    if (who.ends_with('\n')) who.remove_suffix(1);
    fail(ErrorKind::io,
         "[checkpoint] '{}' is in use by {}; wait for it, stop it, or save to another directory",
         directory, who.empty() ? "another process" : std::string(who));
  }
  char host[HOST_NAME_MAX + 1] = "";
  gethostname(host, sizeof(host) - 1);
  const std::string text = fmt::format("process {} on {}\n", getpid(), host);
  if (ftruncate(lock.file.get(), 0) != 0 ||
      pwrite(lock.file.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    fail(ErrorKind::io, "[checkpoint] cannot write '{}': {}; make room or choose another directory",
         path, system_message(errno));
  }
  return lock;
}

void remove_leftovers(const std::string& directory) {
  for (const std::string& name : files_of(directory)) {
    const size_t at = name.find(".tmp-");
    std::error_code ignored;  // a leftover that remains does no harm
    if (at != std::string::npos && step_of(std::string_view(name).substr(0, at)) >= 0)
      fs::remove_all(fs::path(directory) / name, ignored);
  }
}

std::string average_name(const std::string& parameter) {
  return fmt::format("optimizer.{}.ema", parameter);
}

void require_averages(const Manifest& manifest, const std::string& path) {
  const bool any =
      std::any_of(manifest.tensors.begin(), manifest.tensors.end(),
                  [&](const auto& t) { return manifest.tensors.contains(average_name(t.first)); });
  TESSERA_REQUIRE(
      any,
      "[checkpoint] '{}' has no moving averages of its parameters; train with train.ema=0.999, "
      "or take the parameters themselves",
      path);
}

}  // namespace tessera
