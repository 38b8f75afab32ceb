// Shared libraries of CUDA, opened when first needed, and checks of their calls.
#pragma once

#include <string>
#include <vector>

#include "base/fail.h"

namespace tessera::cuda {

/// For tests, which call it before any library is opened: libraries are what `find` knows.
/// find(library, "") is not null if there is such a library, find(library, name) its function.
using FindSymbol = void* (*)(const char* library, const char* symbol);
void replace_libraries(FindSymbol find);

/// A library, opened under the first of several names that is found: by the loader, or in a folder
/// of cuda_folders() (base/env.h). Never closed.
class Library {
 public:
  explicit Library(const std::vector<std::string>& names);
  bool is_open() const { return !name_.empty(); }
  /// Why it could not be opened, with all names tried and a remedy; empty if it is open.
  const std::string& why_not() const { return why_; }
  /// The name or path under which it was opened.
  const std::string& name() const { return name_; }
  /// Throws unsupported if the library lacks it.
  void* symbol(const char* name) const;
  template <class F>
  void get(F& function, const char* name) const {
    function = reinterpret_cast<F>(symbol(name));
  }

 private:
  void* handle_ = nullptr;
  std::string name_, why_;
};

/// Unless `ok`, throws a device error that names the call, its error and the place.
inline void check_call(bool ok, const char* call, const std::string& error, const char* file,
                       int line) {
  if (ok) return;
  const std::string path = file;
  fail(ErrorKind::device, "{}: {} ({}:{})", call, error, path.substr(path.rfind('/') + 1), line);
}

}  // namespace tessera::cuda

/// The text of a macro's expansion. CUDA's headers rename functions by version.
#define TESSERA_TEXT_OF(x) #x
#define TESSERA_TEXT(x) TESSERA_TEXT_OF(x)
