#include "gpu/library/shared_library.h"

#include <dlfcn.h>

#include "base/env.h"

namespace tessera::cuda {

namespace {

/// Where the loader looks, then toolkits that the loader does not know.
std::vector<std::string> folders() {
  std::vector<std::string> all = {""};
  for (const std::string& toolkit : {cuda_home(), std::string("/usr/local/cuda")})
    if (!toolkit.empty()) all.push_back(toolkit + "/lib64/");
  return all;
}

}  // namespace

Library::Library(const std::vector<std::string>& names) {
  for (const std::string& folder : folders()) {
    for (const std::string& name : names) {
      if (!folder.empty() && name.find('/') != name.npos) continue;
      handle_ = dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_ != nullptr) {
        name_ = name;
        return;
      }
      const std::string why = dlerror();
      if (folder.empty()) why_ += (why_.empty() ? "" : "; ") + why;
    }
  }
  why_ += "; the folder that has it belongs in LD_LIBRARY_PATH";
}

void* Library::symbol(const char* name) const {
  if (handle_ == nullptr) fail(ErrorKind::unsupported, "{}", why_);
  void* found = dlsym(handle_, name);
  if (found == nullptr) fail(ErrorKind::unsupported, "{} has no function {}", name_, name);
  return found;
}

}  // namespace tessera::cuda
