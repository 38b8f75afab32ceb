// A file to which records are added while a job runs.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

namespace tessera::cli {

/// Each record is written at once, so that readers see whole ones. Storage that fails later is no
/// reason to end a job: it is told once on stderr, and records are kept in memory until it works.
class LogFile {
 public:
  /// The most bytes kept in memory; records beyond are lost, which is told at the end.
  static constexpr size_t kMostKept = size_t{16} << 20;

  /// Takes an open file and locks it. Throws an io error if another LogFile has it, of any process.
  LogFile(std::string path, std::FILE* file);
  /// Writes what is kept, or tells how much of it is lost.
  ~LogFile();
  LogFile(const LogFile&) = delete;

  bool is_empty() const;
  /// Removes what an earlier job wrote.
  void clear();
  /// Throws an io error only if the first record cannot be written.
  void append(const std::string& record);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  /// Writes what is kept. Returns 0 or an errno.
  int flush();

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::string kept_;
  int64_t lost_ = 0;  ///< records
  bool works_ = true, started_ = false;
};

}  // namespace tessera::cli
