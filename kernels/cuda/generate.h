// CUDA source text for the kernels of the GPU device. Compiles anywhere: needs no CUDA header and
// no GPU.
//
// The text contains everything that depends on shapes, strides and types. Addresses, and numbers
// that differ between ranks or steps, are arguments. So the layers of a model share their kernels,
// and a cache keyed by the text serves all runs.
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
  int64_t number = 0;  ///< Kind::number: the value; Kind::workspace: bytes
};

/// A kernel called `kName` with one struct of 8-byte words as its argument. The text is a
/// translation unit that includes only headers of kernels/.
struct Source {
  std::string text;
  std::vector<Word> words;
  int64_t blocks = 0;  ///< 0: nothing to do
  int threads = 0;     ///< per block
};
inline constexpr const char* kName = "tessera_kernel";

// The generators that program/kernel_table.inc names. `args` as for a CPU kernel; addresses are
// only read for their alignment. Throw unsupported for undefined types.
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

/// "matmul" by direct loops: for integers, and for what no matmul expresses. Ignores a pointwise
/// program, except that sums begin with operand `added`, which has the layout of the result.
Source generate_matmul(const KernelArgs& args, int added = -1);

/// Kernels of a step with a canonical order (Step::order): its sums have the bits of the CPU's. A
/// launch for each place of the result, or several. Libraries are never asked.
std::vector<Source> generate_ordered(const KernelArgs& args);
int64_t ordered_workspace(const Step& step);

/// Converts input 0, whose values are numbers of the format, to bytes in output 0. Requires
/// can_store_float8(): every 16 contiguous elements of the output are evenly spaced in the input.
Source generate_float8(const KernelArgs& args, Float8 format);
bool can_store_float8(const std::vector<int64_t>& sizes, const std::vector<int64_t>& to,
                      const std::vector<int64_t>& from);

/// Libraries that are tried before a generated kernel.
enum class GpuLibrary : uint8_t { none, matmul, convolution, attention };

/// What a GPU has for a kernel: one row of program/kernel_table.inc.
struct GpuKernel {
  KernelKind kind = KernelKind::none;
  /// Kernels that are launched one after the other. Null, and no library: the step runs on the
  /// host.
  std::vector<Source> (*generate)(const KernelArgs& args) = nullptr;
  bool (*can)(const Step& step) = nullptr;  ///< null: supports every step
  GpuLibrary library = GpuLibrary::none;
  int64_t (*workspace_bytes)(const Step& step) = nullptr;  ///< of the kernels; null: none
  int64_t (*library_bytes)(const Step& step) = nullptr;    ///< workspace of the library
  bool clears_result = false;                              ///< cleared before the first launch
};
const GpuKernel& gpu_kernel(KernelKind kind);
/// Of whatever may compute the step where the kernel's library is there, or is not.
int64_t workspace_bytes(const Step& step, bool has_library);

}  // namespace tessera::cuda
