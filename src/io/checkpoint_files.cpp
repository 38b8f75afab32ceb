// The newest checkpoint is the one that was saved last, not the one of the greatest step: the
// serial number in its metadata says so. Files that cannot be read are never removed; they may be
// all that is left of a long run.
#include "io/checkpoint_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <filesystem>

#include "base/fail.h"

namespace tessera {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-", kSuffix = ".safetensors";

/// The number that `text` is as a whole, or -1.
int64_t parse_number(std::string_view text) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0 ? value : -1;
}

/// The step of a checkpoint's file name, or -1.
int64_t step_of(std::string_view file) {
  if (file.size() <= kPrefix.size() + kSuffix.size() || !file.starts_with(kPrefix) ||
      !file.ends_with(kSuffix)) {
    return -1;
  }
  file.remove_prefix(kPrefix.size());
  file.remove_suffix(kSuffix.size());
  return parse_number(file);
}

/// File names of a directory; none if it does not exist.
std::vector<std::string> files_of(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator it(directory, error);
  if (error == std::errc::no_such_file_or_directory) return names;
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) {
    fail(ErrorKind::io, "[checkpoint] cannot list the directory '{}': {}", directory,
         error.message());
  }
  return names;
}

int64_t number_in(const Checkpoint& checkpoint, const char* key) {
  const auto it = checkpoint.metadata.find(key);
  const int64_t value = it == checkpoint.metadata.end() ? -1 : parse_number(it->second);
  if (value < 0) {
    fail(ErrorKind::io, "[checkpoint] '{}' is no checkpoint: its metadata '{}' is {}",
         checkpoint.path, key,
         it == checkpoint.metadata.end() ? "missing" : "'" + it->second + "'");
  }
  return value;
}

}  // namespace

std::string checkpoint_path(const std::string& directory, int64_t step) {
  return (fs::path(directory) / fmt::format("{}{:08}{}", kPrefix, step, kSuffix)).string();
}

Checkpoint read_checkpoint(const std::string& path) {
  const SafetensorsReader file(path);
  Checkpoint checkpoint{path, 0, file.metadata(), ""};
  const int64_t version = number_in(checkpoint, kVersionKey);
  if (version != parse_number(kFormatVersion)) {
    fail(ErrorKind::io, "[checkpoint] '{}' has the format version {}, but this build reads {}; {}",
         path, version, kFormatVersion, "use the version of Tessera that wrote it");
  }
  checkpoint.step = number_in(checkpoint, kStepKey);
  number_in(checkpoint, kSerialKey);
  checkpoint_dims(file);
  return checkpoint;
}

CheckpointScan scan_checkpoints(const std::string& directory) {
  CheckpointScan scan;
  for (const std::string& name : files_of(directory)) {
    const int64_t step = step_of(name);
    if (step < 0) continue;
    try {
      scan.readable.push_back(read_checkpoint((fs::path(directory) / name).string()));
      scan.last_serial = std::max(scan.last_serial, number_in(scan.readable.back(), kSerialKey));
    } catch (const Error& e) {
      scan.unreadable.push_back({step, e.what()});
    }
  }
  std::sort(scan.readable.begin(), scan.readable.end(),
            [](const Checkpoint& a, const Checkpoint& b) {
              return std::pair(number_in(a, kSerialKey), a.step) >
                     std::pair(number_in(b, kSerialKey), b.step);
            });
  std::sort(scan.unreadable.begin(), scan.unreadable.end(),
            [](const auto& a, const auto& b) { return a.step > b.step; });
  return scan;
}

std::optional<Checkpoint> find_latest(const std::string& directory) {
  CheckpointScan scan = scan_checkpoints(directory);
  if (scan.readable.empty()) {
    if (scan.unreadable.empty()) return std::nullopt;
    fail(ErrorKind::io,
         "[checkpoint] none of the {} checkpoint(s) in '{}' can be read; move them away to start "
         "over; "
         "the latest: {}",
         scan.unreadable.size(), directory, scan.unreadable[0].why);
  }
  Checkpoint newest = std::move(scan.readable[0]);
  for (const auto& bad : scan.unreadable) {
    if (bad.step <= newest.step) continue;
    newest.warning += fmt::format("{}skipped a later checkpoint that cannot be read: {}",
                                  newest.warning.empty() ? "" : "; ", bad.why);
  }
  return newest;
}

nlohmann::json checkpoint_dims(const SafetensorsReader& file) {
  const auto it = file.metadata().find(kDimsKey);
  if (it == file.metadata().end()) return nlohmann::json::object();
  const auto dims = nlohmann::json::parse(it->second, nullptr, false);
  if (!dims.is_object()) {
    fail(ErrorKind::io, "[checkpoint] '{}': the metadata '{}' is not a JSON object", file.path(),
         kDimsKey);
  }
  return dims;
}

std::vector<std::string> dims_of(const nlohmann::json& dims, const TensorInfo& info) {
  std::vector<std::string> names;
  const auto entry = dims.find(info.name);
  if (entry == dims.end()) {
    for (size_t d = 0; d < info.sizes.size(); ++d) names.push_back(fmt::format("dim{}", d));
    return names;
  }
  bool good = entry->is_array() && entry->size() == info.sizes.size();
  for (size_t d = 0; good && d < entry->size(); ++d) {
    good = (*entry)[d].is_string();
    if (good) names.push_back((*entry)[d].get<std::string>());
  }
  if (!good) {
    fail(ErrorKind::io, "[checkpoint] the dim names of tensor '{}' do not fit its {} sizes",
         info.name, info.sizes.size());
  }
  return names;
}

Array read_tensor(const std::string& path, const std::string& name) {
  const SafetensorsReader file(path);
  Array whole = file.read(name);
  whole.dims = dims_of(checkpoint_dims(file), file.tensor(name));
  return whole;
}

FileHandle lock_directory(const std::string& directory) {
  const std::string path = (fs::path(directory) / "lock").string();
  FileHandle file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!file) {
    fail(ErrorKind::io, "[checkpoint] cannot open '{}': {}; choose a directory that can be written",
         path, system_message(errno));
  }
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    if (error != EWOULDBLOCK) {
      fail(ErrorKind::io, "[checkpoint] cannot lock '{}': {}; choose a file system with locks",
           path, system_message(error));
    }
    char holder[HOST_NAME_MAX + 64];
    const ssize_t bytes = pread(file.get(), holder, sizeof(holder), 0);
    std::string_view who(holder, bytes > 0 ? static_cast<size_t>(bytes) : 0);
    if (who.ends_with('\n')) who.remove_suffix(1);
    fail(ErrorKind::io,
         "[checkpoint] '{}' is in use by {}; wait for it, stop it, or save to another directory",
         directory, who.empty() ? "another process" : who);
  }
  char host[HOST_NAME_MAX + 1] = "";
  gethostname(host, sizeof(host) - 1);
  const std::string text = fmt::format("process {} on {}\n", getpid(), host);
  if (ftruncate(file.get(), 0) != 0 ||
      pwrite(file.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    fail(ErrorKind::io, "[checkpoint] cannot write '{}': {}; make room or choose another directory",
         path, system_message(errno));
  }
  return file;
}

void remove_leftovers(const std::string& directory) {
  for (const std::string& name : files_of(directory)) {
    const size_t at = name.find(".tmp-");
    std::error_code ignored;  // a leftover that stays does no harm
    if (at != std::string::npos && step_of(std::string_view(name).substr(0, at)) >= 0) {
      fs::remove(fs::path(directory) / name, ignored);
    }
  }
}

std::string remove_old(const std::string& directory, int keep) {
  const CheckpointScan scan = scan_checkpoints(directory);
  std::string warning;
  for (size_t i = static_cast<size_t>(keep); i < scan.readable.size(); ++i) {
    std::error_code error;
    fs::remove(scan.readable[i].path, error);
    if (error && warning.empty()) {
      warning = fmt::format("[checkpoint] cannot remove the old '{}': {}", scan.readable[i].path,
                            error.message());
    }
  }
  return warning;
}

}  // namespace tessera
