// A new file that is written front to back at the disk's own speed: past the page cache where the
// file system can (O_DIRECT), since nobody reads soon what a checkpoint writes, and a copy of it
// would drive out what is read.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "io/file.h"

namespace tessera {

struct FreeBytes {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using AlignedBytes = std::unique_ptr<std::byte, FreeBytes>;
/// Memory that a disk can read from; in large pages where the system has them, touched by nobody.
AlignedBytes aligned_bytes(int64_t bytes);

/// All members return 0 or an errno, after which only the destructor may follow. One thread at a
/// time.
class OutputFile {
 public:
  /// Files of at least this many bytes bypass the page cache.
  static constexpr int64_t kDirectFrom = int64_t{1} << 20;
  /// Offsets, lengths and addresses that are multiples of this are written without a copy.
  static constexpr int64_t kAlign = 4096;

  /// Creates a file that does not exist and will have `bytes` bytes, and reserves room for them.
  int create(const std::string& path, int64_t bytes);
  bool is_open() const { return static_cast<bool>(file_); }
  int append(const void* data, int64_t bytes);
  /// Makes it durable and closes it.
  int finish();
  void close() { file_.close(); }

 private:
  int put(const std::byte* data, int64_t bytes);
  int flush();
  int leave_direct();

  static constexpr int64_t kBuffer = int64_t{1} << 20;
  FileHandle file_;
  bool direct_ = false;
  AlignedBytes buffer_;
  int64_t used_ = 0;  ///< of buffer_
};

}  // namespace tessera
