// Files by descriptor, with errors that name the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace tessera {

/// Owns a file descriptor.
class FileHandle {
 public:
  explicit FileHandle(int fd = -1) : fd_(fd) {}
  ~FileHandle() { close(); }
  FileHandle(FileHandle&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileHandle& operator=(FileHandle&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  /// Closes it. Returns 0 or the errno of close().
  int close();

 private:
  int fd_;
};

/// The message of an errno.
std::string system_message(int error);

/// Opens a regular file for reading and sets `bytes` to its size. Throws an io error that begins
/// with "[room]".
FileHandle open_to_read(const char* room, const std::string& path, int64_t& bytes);

/// A whole file, mapped read-only.
class MappedFile {
 public:
  /// Throws an io error that begins with "[room]". An empty file has no data.
  MappedFile(const char* room, const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  const std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  /// Gives back the memory of what was read, which is no change to its readers: it is mapped again
  /// when it is asked for.
  void give_back() const;

 private:
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace tessera
