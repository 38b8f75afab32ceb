// Compiles the text of a kernel for a GPU with NVRTC, which needs neither a driver nor a GPU, and
// caches the result on disk.
#pragma once

#include <optional>
#include <set>
#include <string>

namespace tessera::cuda {

/// A header that kernels include, by name: those of kernels/ and the parts of the C++ library that
/// they need.
struct Header {
  const char* name;
  const char* text;
};
extern const Header kHeaders[];
extern const int kHeaderCount;

struct Compiled {
  std::string code;  ///< a cubin, or PTX
  std::string log;   ///< compiler output; with `verbose`, registers and spills
};

/// arch: "sm_90" for a cubin, "compute_90" for PTX. Throws unsupported without NVRTC, and internal
/// with the compiler's log if the text does not compile.
Compiled compile(const std::string& text, const std::string& arch, bool verbose = false);

/// What kernels for a GPU of compute capability 9.0 (90) are compiled for: "sm_90"; "sm_80" if
/// NVRTC knows only that of the GPU's generation; else PTX of the newest architecture that it
/// knows, "compute_80", which the driver compiles. Throws unsupported if all are newer than the
/// GPU.
std::string architecture_for(int capability);
/// "13.0".
std::string nvrtc_version();

/// compile() through a cache: files in cache_folder(), named by a hash of text, headers, options,
/// NVRTC's version and architecture. If the folder is not writable nothing is kept. A file that is
/// damaged, of another user or otherwise not to be trusted (base/cache_file.h) is replaced.
class Cache {
 public:
  explicit Cache(const std::string& folder);
  std::string code(const std::string& text, const std::string& arch);
  /// Why nothing is kept; empty if kernels are kept.
  const std::string& why_not_kept() const { return why_not_; }
  int hits() const { return hits_; }
  /// Files that were not used, each with the cause; their kernels were compiled again.
  const std::set<std::string>& ignored() const { return ignored_; }

 private:
  std::optional<std::string> read(const std::string& path, const std::string& key);
  std::string folder_, why_not_;
  int hits_ = 0;
  std::set<std::string> ignored_;
};

}  // namespace tessera::cuda
