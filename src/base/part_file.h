// A file that appears as a whole or not at all.
#pragma once

#include <sys/types.h>

#include <string>

namespace tessera {

/// A name for a file that becomes `path` when it is complete.
std::string part_name(const std::string& path, int n);
/// Says that the file has a writer, until `fd` is closed or the process ends. False if somebody has
/// just removed it.
bool hold_part(int fd);
/// Removes the files named by part_name(path) that no writer holds: processes that were killed left
/// them. Where the file system has no locks they stay.
void remove_abandoned_parts(const std::string& path);

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
  int fd_ = -1;  ///< open to the end, so that nobody takes the file for an abandoned one
  int error_ = 0;
};

}  // namespace tessera
