// CUDA source text for the kernels of the GPU device. Compiles anywhere: no CUDA header, no card.
//
// A kernel's text holds everything that depends on shapes, strides and types; addresses and numbers
// that differ between ranks or steps are arguments. So the layers of a model share their kernels,
// and a cache keyed by the text serves every run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace tessera::cuda {

/// One 8-byte argument of a kernel.
struct Word {
  enum class Kind : uint8_t { out, in, scalars, fault, number } kind = Kind::number;
  int index = 0;       ///< of the operand
  int64_t number = 0;  ///< Kind::number
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

/// "pointwise", "copy" and "fill": one kernel for the whole fused step. `args` as for a kernel of
/// the CPU: the addresses are read for their alignment only. Throws unsupported for an instruction
/// that is not defined for its type.
Source generate_pointwise(const KernelArgs& args);
/// "reduce".
Source generate_reduce(const KernelArgs& args);
/// "gather" and "scatter_add". step_number: what a Fault names.
Source generate_gather(const KernelArgs& args, int64_t step_number);
Source generate_scatter_add(const KernelArgs& args, int64_t step_number);
/// "contract" by direct loops: integers, and what no matrix product can express.
Source generate_contract(const KernelArgs& args);

}  // namespace tessera::cuda
