#include "base/cache_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/fail.h"

namespace tessera {

namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

/// A complete and durable file beside `path` under a name that was free; it is removed at the end,
/// unless it was renamed.
class PartFile {
 public:
  PartFile(const std::string& path, const std::string& text) : path_(path) {
    constexpr int kNames = 100;  // of other hosts' processes, or left by processes that were killed
    int fd = -1;
    for (int n = 0; n < kNames && fd < 0; ++n) {
      name_ = fmt::format("{}.tmp-{}-{}", path, getpid(), n);
      fd = ::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
      if (fd < 0 && errno != EEXIST) break;
    }
    const Descriptor file(fd);
    if (fd < 0) fail_to_write(errno);
    if (const int error = put(fd, text); error != 0) {
      ::unlink(name_.c_str());
      fail_to_write(error);
    }
  }
  ~PartFile() { ::unlink(name_.c_str()); }
  PartFile(const PartFile&) = delete;

  void replace() {
    if (::rename(name_.c_str(), path_.c_str()) != 0) fail_to_write(errno);
  }

  void add() {
    if (::link(name_.c_str(), path_.c_str()) == 0 || errno == EEXIST) return;
    replace();  // no hard links on this file system
  }

 private:
  [[noreturn]] void fail_to_write(int error) const {
    fail(ErrorKind::io, "'{}' could not be written: {}", path_, std::strerror(error));
  }

  /// Returns an errno, or 0 when all is on the disk.
  static int put(int fd, const std::string& text) {
    for (size_t done = 0; done < text.size();) {
      const ssize_t bytes = ::write(fd, text.data() + done, text.size() - done);
      if (bytes < 0 && errno != EINTR) return errno;
      if (bytes > 0) done += static_cast<size_t>(bytes);
    }
    return ::fsync(fd) == 0 ? 0 : errno;
  }

  std::string path_, name_;
};

}  // namespace

std::optional<std::string> read_cache_file(const std::string& path, size_t most) {
  // Without O_NONBLOCK, opening a pipe waits for a writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (file.get() < 0 && (errno == ENOENT || errno == ENOTDIR)) return std::nullopt;
  struct stat status {};
  if (file.get() < 0 || fstat(file.get(), &status) != 0)
    fail(ErrorKind::io, "'{}' cannot be opened: {}", path, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) fail(ErrorKind::io, "'{}' is not a regular file", path);
  std::string text(most + 1, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t bytes = ::read(file.get(), text.data() + size, text.size() - size);
    if (bytes == 0) break;
    if (bytes < 0 && errno != EINTR)
      fail(ErrorKind::io, "'{}' cannot be read: {}", path, std::strerror(errno));
    if (bytes > 0) size += static_cast<size_t>(bytes);
  }
  if (size > most) fail(ErrorKind::io, "'{}' has more than {} bytes", path, most);
  text.resize(size);
  return text;
}

void write_cache_file(const std::string& path, const std::string& text) {
  PartFile(path, text).replace();
}

void add_cache_file(const std::string& path, const std::string& text) {
  PartFile(path, text).add();
}

}  // namespace tessera
