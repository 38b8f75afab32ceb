// A file system layer that fails, loaded with LD_PRELOAD. FAILING_STORAGE is a list of
//   CALL:ERRNO:SKIP:TIMES:PART
// separated by ';': of the calls of CALL (open, write, fsync, rename, mkdir, fallocate) on a path
// that contains PART, the first SKIP work, the next TIMES fail with ERRNO, and later ones work
// again. open means opening for writing. Each process counts for itself.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Rule {
  char call[16], part[64];
  int error, skip, times;
};

std::vector<Rule> rules_of_environment() {
  std::vector<Rule> rules;
  for (const char* text = std::getenv("FAILING_STORAGE"); text != nullptr && *text != 0;) {
    Rule r = {};
    if (std::sscanf(text, "%15[^:]:%d:%d:%d:%63[^;]", r.call, &r.error, &r.skip, &r.times,
                    r.part) != 5) {
      std::fprintf(stderr, "FAILING_STORAGE: cannot read '%s'\n", text);
      std::abort();
    }
    rules.push_back(r);
    text = std::strchr(text, ';');
    if (text != nullptr) ++text;
  }
  return rules;
}

/// Whether this call fails; sets errno.
bool fails(const char* call, const char* path) {
  static std::mutex mutex;
  static std::vector<Rule> rules = rules_of_environment();
  const std::lock_guard lock(mutex);
  for (Rule& r : rules) {
    if (std::strcmp(r.call, call) != 0 || std::strstr(path, r.part) == nullptr) continue;
    if (r.skip > 0) {
      --r.skip;
    } else if (r.times > 0) {
      --r.times;
      errno = r.error;
      return true;
    }
  }
  return false;
}

bool fails(const char* call, int file) {
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  char path[4096] = "";
  return readlink(link.c_str(), path, sizeof(path) - 1) > 0 && fails(call, path);
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

int open_next(const char* name, const char* path, int flags, va_list list) {
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;
  if ((flags & O_ACCMODE) != O_RDONLY && fails("open", path)) return -1;
  return next<int(const char*, int, ...)>(name)(path, flags, mode);
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const int file = open_next("open", path, flags, list);
  va_end(list);
  return file;
}

int open64(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const int file = open_next("open64", path, flags, list);
  va_end(list);
  return file;
}

ssize_t write(int file, const void* data, size_t bytes) {
  if (fails("write", file)) return -1;
  return next<ssize_t(int, const void*, size_t)>("write")(file, data, bytes);
}

int fsync(int file) { return fails("fsync", file) ? -1 : next<int(int)>("fsync")(file); }

int fallocate(int file, int mode, off_t offset, off_t bytes) {
  if (fails("fallocate", file)) return -1;
  return next<int(int, int, off_t, off_t)>("fallocate")(file, mode, offset, bytes);
}

int rename(const char* from, const char* to) noexcept {
  return fails("rename", to) ? -1 : next<int(const char*, const char*)>("rename")(from, to);
}

int mkdir(const char* path, mode_t mode) noexcept {
  return fails("mkdir", path) ? -1 : next<int(const char*, mode_t)>("mkdir")(path, mode);
}

}  // extern "C"
