// CUDA source text for the kernels of the GPU device. Compiles anywhere: no CUDA header, no GPU.
//
// A kernel's text holds everything that depends on shapes, strides and types; addresses and numbers
// that differ between ranks or steps are arguments. So the layers of a model share their kernels,
// and a cache keyed by the text serves every run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/common/kernel.h"
#include "tessera/dtype.h"

namespace tessera::cuda {

/// One 8-byte argument of a kernel.
struct Word {
  enum class Kind : uint8_t { out, in, scalars, fault, workspace, number } kind = Kind::number;
  int index = 0;       ///< of the operand
  int64_t number = 0;  ///< Kind::number; bytes of Kind::workspace
};

/// A kernel called `kName` with one struct of 8-byte words as its argument. The text is a
/// translation unit whose only includes are headers of kernels/.
struct Source {
  std::string text;
  std::vector<Word> words;
  int64_t blocks = 0;  ///< 0: nothing to do
  int threads = 0;     ///< of a block
};
inline constexpr const char* kName = "tessera_kernel";

// The generators that program/kernel_table.inc names. `args` are as for a kernel of the CPU: the
// addresses are read for their alignment only. What is not defined for a type throws unsupported.
#define GPU(f) Source f(const KernelArgs& args);
#define GPU_PASSES(f) std::vector<Source> f(const KernelArgs& args);
#define ONLY_IF(f) bool f(const Step& step);
#define CLEARS_RESULT
#define LIBRARY(library)
#define WORKSPACE(f) int64_t f(const Step& step);
#define PLAN(f)
#define NO_GPU
#define KERNEL(id, ops, info, cpu, gpu) gpu
#include "program/kernel_table.inc"
#undef GPU
#undef GPU_PASSES
#undef ONLY_IF
#undef CLEARS_RESULT
#undef LIBRARY
#undef WORKSPACE
#undef PLAN
#undef NO_GPU

/// `contract` by direct loops: integers, and what no matmul can express. Nothing of a
/// pointwise program but that sums begin with operand `added`, which lies as the result does.
Source generate_contract(const KernelArgs& args, int added = -1);

/// Output 0, of bytes, gets the numbers of input 0, which are numbers of the format. Where
/// can_store_float8() of sizes and strides: 16 neighbours in the output lie evenly in the input.
Source generate_float8(const KernelArgs& args, Float8 format);
bool can_store_float8(const std::vector<int64_t>& sizes, const std::vector<int64_t>& to,
                      const std::vector<int64_t>& from);

/// Libraries that come before a kernel of ours, for the steps that they can compute.
enum class GpuLibrary : uint8_t { none, matmul, convolution, attention };

/// What a GPU has for a kernel: a row of program/kernel_table.inc.
struct GpuKernel {
  KernelKind kind = KernelKind::none;
  /// Launches, one after the other. Null, without a library: steps run on the host.
  std::vector<Source> (*generate)(const KernelArgs& args) = nullptr;
  bool (*can)(const Step& step) = nullptr;  ///< null: every step
  bool clears_result = false;               ///< before the first launch
  GpuLibrary library = GpuLibrary::none;
  int64_t (*workspace_bytes)(const Step& step) = nullptr;  ///< null: none. The library's, if any
};
const GpuKernel& gpu_kernel(KernelKind kind);

}  // namespace tessera::cuda
