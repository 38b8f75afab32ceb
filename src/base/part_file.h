// A file that appears as a whole or not at all.
#pragma once

#include <sys/types.h>

#include <string>

namespace tessera {

/// A new file in the folder of `path`, under a name that was free. It is complete and durable when
/// its error() is 0, and is removed at the end unless it took its place. Nothing that another user
/// put into the folder beforehand, such as a link, is opened. Errors are values of errno.
class PartFile {
 public:
  /// `mode`: permissions, less the process's umask.
  PartFile(const std::string& path, const std::string& text, mode_t mode = 0666);
  ~PartFile();
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  int error() const { return error_; }
  /// Gives the file exactly these permissions, whatever the umask.
  int permit(mode_t mode);
  /// Takes the place of what is at `path`; a link there is replaced, not followed.
  int replace();
  /// Takes its place at `path` unless there is something already, which stays: the first writer's
  /// counts.
  int add();

 private:
  std::string path_, name_;
  int error_ = 0;
};

}  // namespace tessera
