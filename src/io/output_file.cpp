// Data at multiples of kAlign is written directly from where it is; other data is collected in a
// buffer. If the file system refuses direct writes, at once or later, ordinary writes are used;
// also for the tail of a file, which is no whole block.
#include "io/output_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/part_file.h"

namespace tessera {

AlignedBytes aligned_bytes(int64_t bytes) {
  constexpr int64_t kPage = int64_t{2} << 20;
  const int64_t align = bytes >= kPage ? kPage : OutputFile::kAlign;
  const auto whole = static_cast<size_t>((bytes + align - 1) / align * align);
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(static_cast<size_t>(align), whole));
  if (memory == nullptr) throw std::bad_alloc();
  if (align == kPage) madvise(memory, whole, MADV_HUGEPAGE);
  return AlignedBytes(memory);
}

int OutputFile::create(const std::string& path, int64_t bytes) {
  const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  direct_ = bytes >= kDirectFrom;
  if (direct_) file_ = FileHandle(::open(path.c_str(), flags | O_DIRECT, 0666));
  if (direct_ && !file_ && errno == EINVAL) {  // some file systems create the file and then refuse
    ::unlink(path.c_str());
    direct_ = false;
  }
  if (!direct_) file_ = FileHandle(::open(path.c_str(), flags, 0666));
  if (!file_) return errno;
  if (!hold_part(file_.get())) {
    file_.close();
    return EEXIST;
  }
  if (!direct_) return 0;
  int error = 0;
  do {
    error = ::fallocate(file_.get(), 0, 0, bytes) == 0 ? 0 : errno;
  } while (error == EINTR);
  // A full disk is reported now. A file system that cannot reserve space is no error.
  return error == ENOSPC || error == EDQUOT || error == EFBIG ? error : 0;
}

int OutputFile::leave_direct() {
  direct_ = false;
  const int flags = fcntl(file_.get(), F_GETFL);
  return flags >= 0 && fcntl(file_.get(), F_SETFL, flags & ~O_DIRECT) == 0 ? 0 : errno;
}

int OutputFile::put(const std::byte* data, int64_t bytes) {
  while (bytes > 0) {
    const ssize_t done = ::write(file_.get(), data, static_cast<size_t>(bytes));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && errno == EINVAL && direct_) {
      if (const int error = leave_direct()) return error;
      continue;
    }
    if (done < 0) return errno;
    data += done;
    bytes -= done;
  }
  return 0;
}

int OutputFile::flush() {
  const int64_t bytes = std::exchange(used_, 0);
  return bytes == 0 ? 0 : put(buffer_.get(), bytes);
}

int OutputFile::append(const void* data, int64_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  if (!direct_ && used_ == 0) return put(at, bytes);
  if (used_ % kAlign == 0 && reinterpret_cast<uintptr_t>(at) % kAlign == 0 && bytes >= kAlign) {
    if (const int error = flush()) return error;
    const int64_t whole = bytes / kAlign * kAlign;
    if (const int error = put(at, whole)) return error;
    at += whole;
    bytes -= whole;
  }
  while (bytes > 0) {
    if (!buffer_) buffer_ = aligned_bytes(kBuffer);
    const int64_t part = std::min(bytes, kBuffer - used_);
    std::memcpy(buffer_.get() + used_, at, static_cast<size_t>(part));
    used_ += part;
    at += part;
    bytes -= part;
    if (used_ == kBuffer) {
      if (const int error = flush()) return error;
    }
  }
  return 0;
}

int OutputFile::finish() {
  if (direct_ && used_ % kAlign != 0) {
    if (const int error = leave_direct()) return error;
  }
  if (const int error = flush()) return error;
  return fsync(file_.get()) == 0 ? 0 : errno;
}

}  // namespace tessera
