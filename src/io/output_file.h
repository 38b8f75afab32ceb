// A new file that is written sequentially at disk speed. It bypasses the page cache if the file
// system can (O_DIRECT): checkpoints are not read again soon, and caching them would evict data
// that is.
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
/// Memory aligned for direct I/O; with large pages if available; not touched yet.
AlignedBytes aligned_bytes(int64_t bytes);

/// All members return 0 or an errno; after an errno only the destructor may be called. Use it from
/// one thread at a time.
class OutputFile {
 public:
  /// Files of at least this many bytes bypass the page cache.
  static constexpr int64_t kDirectFrom = int64_t{1} << 20;
  /// Offsets, lengths and addresses that are multiples of this are written without a copy.
  static constexpr int64_t kAlign = 4096;

  /// Creates a file, which must not exist, and reserves space for its `bytes` bytes.
  int create(const std::string& path, int64_t bytes);
  bool is_open() const { return static_cast<bool>(file_); }
  int append(const void* data, int64_t bytes);
  /// Makes the file durable. It stays open, so that nobody takes it for one that was abandoned.
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
  int64_t used_ = 0;  ///< bytes in buffer_
};

}  // namespace tessera
