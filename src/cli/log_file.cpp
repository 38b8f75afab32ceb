#include "cli/log_file.h"

#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/fail.h"
#include "base/files.h"
#include "base/printable.h"

namespace tessera::cli {

namespace {

void warn(const std::string& text) {
  std::fprintf(stderr, "tessera: warning: %s\n", printable(text).c_str());
}

}  // namespace

LogFile::LogFile(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {
  if (is_file(path_) && flock(fileno(file), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    fail(ErrorKind::io,
         "another job writes to '{}', and lines of both would be lost; choose another file", path_);
}

LogFile::~LogFile() {
  const int error = flush();
  if (error == 0 && lost_ == 0) return;
  warn(fmt::format("'{}' lacks the last {} bytes{}: {}", path_, kept_.size(),
                   lost_ == 0 ? "" : fmt::format(" and {} records after them", lost_),
                   error == 0 ? "storage failed for too long" : std::strerror(error)));
}

void LogFile::clear() {
  if (is_file(path_) && ftruncate(fileno(file_.get()), 0) != 0)
    fail(ErrorKind::io, "cannot empty '{}': {}", path_, std::strerror(errno));
}

bool LogFile::is_empty() const { return std::ftell(file_.get()) == 0; }

int LogFile::flush() {
  if (std::fflush(file_.get()) != 0) return errno;
  while (!kept_.empty()) {
    const ssize_t done = ::write(fileno(file_.get()), kept_.data(), kept_.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return errno;
    kept_.erase(0, static_cast<size_t>(done));
  }
  return 0;
}

void LogFile::append(const std::string& record) {
  if (kept_.size() + record.size() > kMostKept) {
    ++lost_;
  } else {
    kept_ += record;
  }
  const int error = flush();
  if (error != 0 && !std::exchange(started_, true)) {
    kept_.clear();
    fail(ErrorKind::io, "cannot write the log '{}': {} (is the disk full?)", path_,
         std::strerror(error));
  }
  started_ = true;
  if (error != 0 && works_)
    warn(fmt::format("cannot write '{}': {}; what follows is kept in memory until it works again",
                     path_, std::strerror(error)));
  if (error == 0 && !works_) warn(fmt::format("'{}' can be written again", path_));
  works_ = error == 0;
}

}  // namespace tessera::cli
