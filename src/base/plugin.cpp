#include "base/plugin.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <vector>

#include "base/files.h"

namespace tessera {

namespace {

std::vector<std::string> places() {
  std::vector<std::string> all;
  Dl_info here{};
  if (dladdr(reinterpret_cast<void*>(&open_plugin), &here) != 0 && here.dli_fname != nullptr)
    all.push_back(folder_of(here.dli_fname));
  char exe[4096];
  const ssize_t length = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
  if (length > 0) all.push_back(folder_of(std::string(exe, static_cast<size_t>(length))));
  return all;
}

void* open_library(const std::string& library, std::string& why) {
  std::vector<std::string> paths;
  for (const std::string& place : places()) {
    for (const char* below : {"/", "/../", "/../" TESSERA_LIBDIR "/"})
      paths.push_back(place + below + library);
  }
  for (const std::string& path : paths) {
    if (access(path.c_str(), R_OK) != 0) continue;
    if (void* opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return opened;
    why = dlerror();
  }
  void* opened = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr && why.empty()) {
    const std::string said = dlerror();
    const bool absent = said.starts_with(library + ": cannot open shared object file");
    why = absent ? fmt::format("{} is not there", library) : said;
  }
  return opened;
}

}  // namespace

void* open_plugin(const std::string& library, const char* name, std::string& why) {
  void* opened = open_library(library, why);
  void* function = opened == nullptr ? nullptr : dlsym(opened, name);
  if (opened != nullptr && function == nullptr)
    why = fmt::format("{} has no function {}; is it of another version?", library, name);
  return function;
}

}  // namespace tessera
