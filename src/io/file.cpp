#include "io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/fail.h"

namespace tessera {

int FileHandle::close() {
  const int fd = std::exchange(fd_, -1);
  return fd >= 0 && ::close(fd) != 0 ? errno : 0;
}

std::string system_message(int error) { return std::generic_category().message(error); }

FileHandle open_to_read(const char* room, const std::string& path, int64_t& bytes) {
  struct stat status {};
  const bool exists = stat(path.c_str(), &status) == 0;
  if (exists && !S_ISREG(status.st_mode)) {  // opening a pipe would wait for a writer
    fail(ErrorKind::io, "[{}] '{}' is not a regular file; give the path of a file", room, path);
  }
  FileHandle file(exists ? ::open(path.c_str(), O_RDONLY | O_CLOEXEC) : -1);
  if (!file || fstat(file.get(), &status) != 0) {
    fail(ErrorKind::io, "[{}] cannot open '{}': {}; check the path", room, path,
         system_message(errno));
  }
  bytes = status.st_size;
  return file;
}

MappedFile::MappedFile(const char* room, const std::string& path) {
  const FileHandle file = open_to_read(room, path, size_);
  if (size_ == 0) return;
  void* map = mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_SHARED, file.get(), 0);
  if (map == MAP_FAILED) {
    fail(ErrorKind::io, "[{}] cannot map the {} bytes of '{}': {}", room, size_, path,
         system_message(errno));
  }
  data_ = static_cast<const std::byte*>(map);
}

MappedFile::~MappedFile() {
  if (data_) munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_));
}

void MappedFile::give_back() const {
  if (size_ > 0)
    ::madvise(const_cast<std::byte*>(data_), static_cast<size_t>(size_), MADV_DONTNEED);
}

}  // namespace tessera
