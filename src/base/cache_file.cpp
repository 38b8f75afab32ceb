#include "base/cache_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/fail.h"
#include "base/hash.h"
#include "base/part_file.h"

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

[[noreturn]] void fail_to_write(const std::string& path, int error) {
  fail(ErrorKind::io, "'{}' could not be written: {}", path, std::strerror(error));
}

}  // namespace

std::optional<std::string> read_cache_file(const std::string& path, size_t most) {
  // Without O_NONBLOCK, opening a pipe waits for a writer.
  const Descriptor file(
      ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW | O_CLOEXEC));
  if (file.get() < 0 && (errno == ENOENT || errno == ENOTDIR)) return std::nullopt;
  if (file.get() < 0 && errno == ELOOP)
    fail(ErrorKind::io, "'{}' is a symbolic link; a file of the cache has to lie there itself",
         path);
  struct stat status {};
  if (file.get() < 0 || fstat(file.get(), &status) != 0)
    fail(ErrorKind::io, "'{}' cannot be opened: {}", path, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) fail(ErrorKind::io, "'{}' is not a regular file", path);
  if (status.st_uid != geteuid() && status.st_uid != 0)
    fail(ErrorKind::io,
         "'{}' belongs to user {}; a file of the cache has to belong to user {}, who reads it, or "
         "to root",
         path, status.st_uid, geteuid());
  std::string text;
  size_t size = 0;
  for (bool more = true; more;) {
    if (size == text.size()) text.resize(std::min(most + 1, 2 * size + 4096));
    const ssize_t bytes = ::read(file.get(), text.data() + size, text.size() - size);
    if (bytes < 0 && errno != EINTR)
      fail(ErrorKind::io, "'{}' cannot be read: {}", path, std::strerror(errno));
    if (bytes > 0) size += static_cast<size_t>(bytes);
    more = bytes != 0 && size <= most;
  }
  if (size > most) fail(ErrorKind::io, "'{}' has more than {} bytes", path, most);
  text.resize(size);
  return text;
}

void write_cache_file(const std::string& path, const std::string& text) {
  if (const int error = PartFile(path, text).replace(); error != 0) fail_to_write(path, error);
}

void add_cache_file(const std::string& path, const std::string& text) {
  if (const int error = PartFile(path, text).add(); error != 0) fail_to_write(path, error);
}

std::string cache_entry(const std::string& format, const std::string& key,
                        const std::string& value) {
  return fmt::format("{}\n{} {} {:016x}\n{}\n{}\n", format, key.size(), value.size(),
                     hash_of(value, hash_of(key)), key, value);
}

std::string cached_value(const std::string& text, const std::string& format,
                         const std::string& key) {
  const std::string begin = format + "\n" + std::to_string(key.size()) + " ";
  const size_t end_of_sizes = text.find('\n', std::min(begin.size(), text.size()));
  if (!text.starts_with(format + "\n")) fail(ErrorKind::io, "it is not in the format '{}'", format);
  // What is around the value is known, given the number of its bytes.
  const size_t around = end_of_sizes + 1 + key.size() + 2;
  if (end_of_sizes == std::string::npos || text.size() < around)
    fail(ErrorKind::io, "it is damaged or answers another question");
  const std::string value = text.substr(around - 1, text.size() - around);
  if (text != cache_entry(format, key, value))
    fail(ErrorKind::io, "it is damaged or answers another question");
  return value;
}

}  // namespace tessera
