#include "cuda/library.h"

#include <dlfcn.h>

namespace tessera::cuda {

Library::Library(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      name_ = name;
      return;
    }
    why_ += (why_.empty() ? "" : "; ") + std::string(dlerror());
  }
}

void* Library::symbol(const char* name) const {
  if (handle_ == nullptr) fail(ErrorKind::unsupported, "{}", why_);
  void* found = dlsym(handle_, name);
  if (found == nullptr) fail(ErrorKind::unsupported, "{} has no function {}", name_, name);
  return found;
}

}  // namespace tessera::cuda
