// Event files that TensorBoard reads: a sequence of records, each the length of its bytes, a masked
// CRC-32C of the length, the bytes, which are a protocol buffer of type Event, and their masked
// CRC-32C.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace tessera::cli {

class EventFile {
 public:
  /// Makes the folder and in it a new file events.out.tfevents.<seconds>.<host>.<pid>. Throws an io
  /// error.
  explicit EventFile(const std::string& folder);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  /// Appends numbers of a step under their tags ("train/loss"), and flushes. Throws an io error.
  void add(int64_t step, const std::vector<std::pair<std::string, double>>& scalars);
  const std::string& path() const { return path_; }

 private:
  void write(const std::string& event);
  std::string path_;
  std::FILE* file_ = nullptr;
};

}  // namespace tessera::cli
