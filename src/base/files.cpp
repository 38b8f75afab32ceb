#include "base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/fail.h"
#include "base/part_file.h"

namespace tessera {

namespace {

namespace fs = std::filesystem;

/// What `path` is if it is no regular file, as words. "" for a regular file and for paths in /dev.
std::string other_than_file(const std::string& path, const struct stat& status) {
  if (S_ISREG(status.st_mode)) return "";
  if (S_ISDIR(status.st_mode)) return "a directory";
  if (path.starts_with("/dev/")) return "";
  return S_ISFIFO(status.st_mode) ? "a pipe" : S_ISSOCK(status.st_mode) ? "a socket" : "a device";
}

/// The errno of opening a file for writing, 0 if it works. A file created for the test is removed.
int error_of_opening(const std::string& path, bool exists) {
  if (!exists) return PartFile(path, "").error();
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return errno;
  ::close(fd);
  return 0;
}

/// In a folder that others may write to, a link of theirs can lead anywhere. 0 if `path` is no such
/// link, else its owner's number.
uid_t owner_of_foreign_link(const std::string& path) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0 || !S_ISLNK(status.st_mode)) return 0;
  return status.st_uid == geteuid() ? 0 : status.st_uid;
}

/// Returns an errno, or 0.
int write_in_place(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return errno;
  const bool done = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  int error = done ? 0 : errno;
  if (std::fclose(file) != 0 && error == 0) error = errno;
  return error;
}

int write_beside(const std::string& path, const std::string& text) {
  struct stat status {};
  const bool exists = stat(path.c_str(), &status) == 0;
  PartFile part(path, text, exists ? status.st_mode & 0777 : 0666);
  if (part.error() == 0 && exists) part.permit(status.st_mode & 07777);
  return part.replace();
}

/// What a path leads to; of a link itself if `follow` is false.
PathKind kind(const fs::path& path, bool follow) {
  struct stat status {};
  if ((follow ? stat : lstat)(path.c_str(), &status) != 0) {
    // No name is as long as the system refuses, so nothing has it.
    if (errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG) return PathKind::nothing;
    fail(ErrorKind::io, "cannot look at '{}': {}; check the permissions and links on the way to it",
         path.string(), std::strerror(errno));
  }
  return S_ISREG(status.st_mode)   ? PathKind::file
         : S_ISDIR(status.st_mode) ? PathKind::folder
                                   : PathKind::other;
}

}  // namespace

PathKind kind_of(const fs::path& path) { return kind(path, true); }
bool is_there(const fs::path& path) { return kind_of(path) != PathKind::nothing; }
bool is_file(const fs::path& path) { return kind_of(path) == PathKind::file; }
bool is_folder(const fs::path& path) { return kind_of(path) == PathKind::folder; }
bool is_taken(const fs::path& path) { return kind(path, false) != PathKind::nothing; }

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename().string());
  if (error)
    fail(ErrorKind::io, "cannot list the folder '{}': {}; check that it is there and may be read",
         folder.string(), error.message());
  std::sort(names.begin(), names.end());
  return names;
}

int64_t size_of_file(const fs::path& file) {
  std::error_code error;
  const auto bytes = static_cast<int64_t>(fs::file_size(file, error));
  if (error)
    fail(ErrorKind::io, "cannot tell the size of '{}': {}; check the path", file.string(),
         error.message());
  return bytes;
}

void make_folders(const fs::path& folder, const std::string& of) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || !is_folder(folder))
    fail(ErrorKind::io, "cannot make the folder '{}'{}: {}; choose another path", folder.string(),
         of.empty() ? "" : " of " + of, error ? error.message() : "something else has its name");
}

std::string folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

std::string read_text_file(const char* what, const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0)
    fail(ErrorKind::io, "cannot open {} '{}': {}; check the path", what, path,
         std::strerror(errno));
  if (const std::string other = other_than_file(path, status); !other.empty())
    fail(ErrorKind::io, "cannot open {} '{}': it is {}; give the path of a file", what, path,
         other);
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file.is_open() || file.bad())
    fail(ErrorKind::io, "cannot read {} '{}': {}", what, path, std::strerror(errno));
  return text;
}

void require_writable(const std::string& path) {
  if (path.empty()) return;
  struct stat status {};
  const bool exists = stat(path.c_str(), &status) == 0;
  std::string why = exists ? other_than_file(path, status) : "";
  if (!why.empty()) {
    why = fmt::format("it is {}; give the path of a file", why);
  } else if (path == "-") {
    why = "standard output has the text already; give the path of a file, or /dev/stdout";
  } else if (const uid_t owner = owner_of_foreign_link(path); owner != 0) {
    why = fmt::format(
        "it is a symbolic link of user {}, not of {}; remove it or choose another "
        "path",
        owner, geteuid());
  } else if (const std::string folder = folder_of(path); !exists && !is_folder(folder)) {
    why = "its folder does not exist";
  } else if (const int error = error_of_opening(path, exists); error != 0) {
    why = fmt::format("{}; choose another path", std::strerror(error));
  }
  if (!why.empty()) fail(ErrorKind::io, "cannot write '{}': {}", path, why);
}

std::FILE* open_output(const std::string& path, bool append) {
  require_writable(path);
  std::FILE* file = std::fopen(path.c_str(), append ? "a" : "w");
  if (file == nullptr)
    fail(ErrorKind::io, "cannot write '{}': {}; choose another path", path, std::strerror(errno));
  return file;
}

void write_text_file(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  require_writable(path);
  std::error_code ignored;
  const fs::path target =
      fs::is_symlink(path, ignored) ? fs::canonical(path, ignored) : fs::path(path);
  // A device, or a file in an unwritable folder, is written directly.
  const bool beside = !target.empty() && (!is_there(target) || is_file(target)) &&
                      access(folder_of(target).c_str(), W_OK) == 0;
  const int error = beside ? write_beside(target, text) : write_in_place(path, text);
  if (error == 0) return;
  fail(ErrorKind::io, "cannot write the {} bytes of '{}': {}; make room or choose another path",
       text.size(), path, std::strerror(error));
}

fs::path folder_path(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  if (error)
    fail(ErrorKind::io, "cannot tell the folder of '{}': {}; give an absolute path", path,
         error.message());
  const fs::path folder = absolute.lexically_normal();
  return folder.has_filename() ? folder : folder.parent_path();
}

}  // namespace tessera
