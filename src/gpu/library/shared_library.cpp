#include "gpu/library/shared_library.h"

#include <dlfcn.h>

#include "base/env.h"

namespace tessera::cuda {

namespace {
FindSymbol replacement = nullptr;
}  // namespace

void replace_libraries(FindSymbol find) { replacement = find; }

Library::Library(const std::vector<std::string>& names) {
  if (replacement != nullptr) {
    for (const std::string& name : names) {
      if (name_.empty() && replacement(name.c_str(), "") != nullptr) name_ = name;
    }
    if (name_.empty()) why_ = names[0] + " is not there";
    return;
  }
  std::vector<std::string> folders = cuda_folders();
  folders.insert(folders.begin(), "");
  for (const std::string& folder : folders) {
    for (const std::string& name : names) {
      if (!folder.empty() && name.find('/') != name.npos) continue;
      const std::string path = folder.empty() ? name : folder + "/" + name;
      handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_ != nullptr) {
        name_ = path;
        return;
      }
      const std::string why = dlerror();
      if (folder.empty()) why_ += (why_.empty() ? "" : "; ") + why;
    }
  }
  why_ +=
      "; the folder that has it belongs in LD_LIBRARY_PATH, or the Python environment in "
      "VIRTUAL_ENV";
}

void* Library::symbol(const char* name) const {
  if (!is_open()) fail(ErrorKind::unsupported, "{}", why_);
  void* found = replacement != nullptr ? replacement(name_.c_str(), name) : dlsym(handle_, name);
  if (found == nullptr) fail(ErrorKind::unsupported, "{} has no function {}", name_, name);
  return found;
}

}  // namespace tessera::cuda
