#include "base/part_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace tessera {

namespace {

/// Opens a new file beside `path`; `name` becomes its name. -1, with errno, if that fails.
int create_beside(const std::string& path, mode_t mode, std::string& name) {
  constexpr int kNames = 100;  // of other hosts' processes, or left by processes that were killed
  int fd = -1;
  for (int n = 0; n < kNames && fd < 0; ++n) {
    name = fmt::format("{}.tmp-{}-{}", path, getpid(), n);
    fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0 && errno != EEXIST) break;
  }
  return fd;
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

PartFile::PartFile(const std::string& path, const std::string& text, mode_t mode) : path_(path) {
  const int fd = create_beside(path, mode, name_);
  if (fd < 0) {
    error_ = errno;
    name_.clear();
    return;
  }
  error_ = put(fd, text);
  if (::close(fd) != 0 && error_ == 0) error_ = errno;
}

PartFile::~PartFile() {
  if (!name_.empty()) ::unlink(name_.c_str());
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
