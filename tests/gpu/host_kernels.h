// Kernels of a GPU as functions of the host. Either the text that NVRTC gets is compiled as C++,
// with tests/gpu/cuda_shim.h, once for all processes that ask for it; or NVRTC compiles it, and its
// PTX is executed (gpu/ptx): slower, but it is what a GPU would be given, with checks of every
// access.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gpu/device/cuda_types.h"

namespace tessera::test {

/// What a kernel was given: it may touch nothing else.
struct KernelMemory {
  std::vector<CudaRange> reads, writes, atomics;
};

class HostKernel {
 public:
  virtual ~HostKernel() = default;
  /// Runs all threads of all blocks. args: the kernel's argument struct. `memory`: null where
  /// nothing is known; PTX that touches more throws.
  virtual void run(const void* args, int64_t blocks, int threads,
                   const KernelMemory* memory = nullptr) const = 0;
};

enum class KernelsAs : uint8_t { cpp, ptx };
/// Whether this build can make PTX.
bool has_ptx();
/// PTX if TESSERA_TEST_KERNELS is "ptx".
KernelsAs kernels_by_default();

/// Says that `text` will be wanted: it is compiled together with others.
void announce_host_kernel(const std::string& text, KernelsAs as = kernels_by_default());
/// Compiles all announced texts if this one has not been. Throws with the compiler's output.
const HostKernel& host_kernel(const std::string& text, KernelsAs as = kernels_by_default());

/// Kernels compiled as C++, and kept in a folder that several processes may share. What lies there
/// is found by a hash of all that decides the code: the kernel, the headers, the compiler and its
/// flags. What is damaged is compiled again.
class KeptKernels {
 public:
  /// source: where the library's source is.
  KeptKernels(std::filesystem::path folder, std::filesystem::path source);
  ~KeptKernels();
  void announce(const std::string& text);
  /// Compiles all announced texts that the folder lacks if this is not there yet. Throws with the
  /// compiler's output.
  const HostKernel& get(const std::string& text);
  int compiled() const { return compiled_; }  ///< those that the folder lacked

 private:
  class Kernel;
  static constexpr size_t kKernelsOfFile = 8;  ///< else several files are compiled side by side
  void prepare();
  void precompile_headers();
  bool load(Kernel& kernel);
  void compile_waiting();
  void compile(const std::vector<Kernel*>& kernels);

  const std::filesystem::path folder_, source_;
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Kernel>> kernels_;  ///< by text
  std::vector<Kernel*> waiting_;
  std::map<std::string, void*> libraries_;  ///< by name, those that are whole
  std::string command_;                     ///< the compiler's
  std::filesystem::path headers_;           ///< one header with all that kernels include
  uint64_t hash_ = 0;                       ///< of both
  int compiled_ = 0;
};

}  // namespace tessera::test
