#include "base/part_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

namespace tessera {

namespace {

/// Opens a new file beside `path`; `name` becomes its name. -1, with errno, if that fails.
int create_beside(const std::string& path, mode_t mode, std::string& name) {
  constexpr int kNames = 100;  // of other hosts' processes
  remove_abandoned_parts(path);
  for (int n = 0; n < kNames; ++n) {
    name = part_name(path, n);
    const int fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd >= 0 && hold_part(fd)) return fd;
    if (fd < 0 && errno != EEXIST) return -1;
    if (fd >= 0) ::close(fd);
  }
  errno = EEXIST;
  return -1;
}

int put(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t bytes = ::write(fd, text.data() + done, text.size() - done);
    if (bytes < 0 && errno != EINTR) return errno;
    if (bytes > 0) done += static_cast<size_t>(bytes);
  }
  return ::fsync(fd) == 0 ? 0 : errno;
}

int error_of(int result) { return result == 0 ? 0 : errno; }

}  // namespace

std::string part_name(const std::string& path, int n) {
  return fmt::format("{}.tmp-{}-{}", path, getpid(), n);
}

bool hold_part(int fd) {
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
  struct stat status {};
  return ::fstat(fd, &status) != 0 || status.st_nlink > 0;
}

void remove_abandoned_parts(const std::string& path) {
  const std::filesystem::path file(path);
  const std::string begin = file.filename().string() + ".tmp-";
  std::error_code none;
  std::filesystem::directory_iterator it(file.has_parent_path() ? file.parent_path() : ".", none);
  for (; it != std::filesystem::directory_iterator(); it.increment(none)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(begin) ||
        name.find_first_not_of("0123456789-", begin.size()) != name.npos)
      continue;
    const int fd = ::open(it->path().c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) continue;
    struct stat status {};
    if (::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && ::flock(fd, LOCK_EX | LOCK_NB) == 0)
      ::unlink(it->path().c_str());
    ::close(fd);
  }
}

PartFile::PartFile(const std::string& path, const std::string& text, mode_t mode) : path_(path) {
  fd_ = create_beside(path, mode, name_);
  if (fd_ >= 0) {
    error_ = put(fd_, text);
  } else {
    error_ = errno;
    name_.clear();
  }
}

PartFile::~PartFile() {
  if (!name_.empty()) ::unlink(name_.c_str());
  if (fd_ >= 0) ::close(fd_);
}

int PartFile::permit(mode_t mode) { return error_of(::chmod(name_.c_str(), mode)); }

int PartFile::replace() {
  if (error_ != 0) return error_;
  const int error = error_of(::rename(name_.c_str(), path_.c_str()));
  if (error == 0) name_.clear();
  return error;
}

int PartFile::add() {
  if (error_ != 0) return error_;
  if (::link(name_.c_str(), path_.c_str()) == 0 || errno == EEXIST) return 0;
  return replace();  // no hard links on this file system
}

}  // namespace tessera
