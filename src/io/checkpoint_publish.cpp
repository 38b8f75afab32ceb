// The last part of a save, done by the root process: writes a manifest from the headers of all
// ranks' files, then renames the directory. Everything is on disk before the rename.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/fail.h"
#include "base/files.h"
#include "io/checkpoint_files.h"
#include "io/shard.h"

namespace tessera {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void give_up(const char* what, const std::string& path, int error) {
  const char* remedy = error == ENOSPC || error == EDQUOT || error == EFBIG
                           ? "make room or choose another directory"
                           : "check the directory and its permissions";
  fail(ErrorKind::io, "[checkpoint] cannot {} '{}': {}; {}", what, path, system_message(error),
       remedy);
}

void sync_directory(const std::string& path) {
  const FileHandle directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems cannot sync a directory (EINVAL) and need not.
  if (!directory || (fsync(directory.get()) != 0 && errno != EINVAL))
    give_up("sync the directory", path, errno);
}

void write_file(const std::string& path, const std::string& text) {
  constexpr int kNew = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  FileHandle file(::open(path.c_str(), kNew, 0666));
  if (!file) give_up("create", path, errno);
  for (size_t at = 0; at < text.size();) {
    const ssize_t done = ::write(file.get(), text.data() + at, text.size() - at);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) give_up("write", path, errno);
    at += static_cast<size_t>(done);
  }
  if (fsync(file.get()) != 0) give_up("sync", path, errno);
  if (const int error = file.close()) give_up("close", path, error);
}

/// Returns a warning, or "".
std::string remove_old(const std::string& directory, int keep) {
  const CheckpointScan scan = scan_checkpoints(directory);
  std::string warning;
  for (size_t i = static_cast<size_t>(keep); i < scan.readable.size(); ++i) {
    // Renamed first, so that a partly removed directory does not count as an unreadable checkpoint.
    const std::string path = scan.readable[i].path, going = path + ".tmp-removed";
    std::error_code error;
    fs::rename(path, going, error);
    if (!error) fs::remove_all(going, error);
    if (error && warning.empty())
      warning = fmt::format("[checkpoint] cannot remove the old '{}': {}", path, error.message());
  }
  return warning;
}

}  // namespace

bool wait_for_files(const std::string& directory, const std::vector<std::string>& names,
                    const std::atomic<SaveStage>& stage) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kPatience = std::chrono::minutes(1);
  Clock::time_point last = Clock::now();
  for (size_t found = 0; found < names.size();) {
    if (is_there(fs::path(directory) / names[found])) {
      ++found;
      continue;
    }
    if (stage == SaveStage::cancelled) return false;
    if (stage == SaveStage::writing) last = Clock::now();
    if (Clock::now() - last > kPatience)
      fail(
          ErrorKind::io,
          "[checkpoint] '{}' does not appear in '{}'; all ranks must see one directory: choose one "
          "on a file system that the hosts share",
          names[found], directory);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return stage != SaveStage::cancelled;
}

std::string publish_checkpoint(const std::string& temporary, const std::vector<std::string>& names,
                               const Checkpoint& checkpoint, const std::string& directory,
                               int keep) {
  Manifest manifest;
  manifest.step = checkpoint.step;
  manifest.serial = std::stoll(checkpoint.metadata.at(kSerialKey));
  manifest.metadata = checkpoint.metadata;
  for (const std::string& name : names) {
    std::vector<ShardPiece> pieces;
    manifest.files.push_back(describe_shard(temporary, name, pieces));
    for (ShardPiece& p : pieces) {
      ManifestTensor& tensor = manifest.tensors[p.name];
      tensor.shape = p.shape;
      p.piece.file = static_cast<int>(manifest.files.size()) - 1;
      tensor.pieces.push_back(std::move(p.piece));
    }
  }
  const std::string text = to_text(manifest);
  const std::string path = (fs::path(temporary) / kManifestName).string();
  parse_manifest(text, path);  // never publish an unreadable manifest
  write_file(path, text);
  sync_directory(temporary);
  if (::rename(temporary.c_str(), checkpoint.path.c_str()) != 0)
    give_up("rename to", checkpoint.path, errno);
  sync_directory(directory);
  return remove_old(directory, keep);
}

}  // namespace tessera
