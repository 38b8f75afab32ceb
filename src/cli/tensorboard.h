// Event files for TensorBoard: a sequence of records. Each has its length, a masked CRC-32C of the
// length, a protocol buffer of type Event, and its masked CRC-32C.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/log_file.h"

namespace tessera::cli {

class EventFile {
 public:
  /// Creates the folder and in it the file events.out.tfevents.<seconds>.<host>.<pid>. Throws an io
  /// error.
  explicit EventFile(const std::string& folder);
  /// Appends numbers of a step with their tags ("train/loss"), as LogFile::append().
  void add(int64_t step, const std::vector<std::pair<std::string, double>>& scalars);
  /// Appends a text.
  void add_text(int64_t step, const std::string& tag, const std::string& text);
  const std::string& path() const { return path_; }

 private:
  void add_summary(int64_t step, const std::string& summary);
  void write(const std::string& event);
  std::string path_;
  std::unique_ptr<LogFile> file_;
};

}  // namespace tessera::cli
