#include "base/part.h"

#include <dlfcn.h>
#include <unistd.h>

#include <vector>

namespace tessera {

namespace {

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

}  // namespace

std::string path_of_part(const std::string& file, bool& found) {
  std::vector<std::string> places;
  Dl_info here{};
  if (dladdr(reinterpret_cast<void*>(&path_of_part), &here) != 0 && here.dli_fname != nullptr)
    places.push_back(folder_of(here.dli_fname));
  char exe[4096];
  const ssize_t length = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
  if (length > 0) places.push_back(folder_of(std::string(exe, static_cast<size_t>(length))));
  for (const std::string& place : places) {
    for (const char* below : {"/", "/../", "/../" TESSERA_LIBDIR "/"}) {
      const std::string path = place + below + file;
      found = access(path.c_str(), R_OK) == 0;
      if (found) return path;
    }
  }
  return file;
}

void* open_part(const std::string& file, bool global, std::string& why) {
  bool found = false;
  const std::string path = path_of_part(file, found);
  void* library = dlopen(path.c_str(), RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
  if (library == nullptr) why = found ? dlerror() : file + " is not there";
  return library;
}

}  // namespace tessera
