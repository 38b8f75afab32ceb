// CUDA source text for the kernels of the GPU device. Compiles anywhere: no CUDA header, no card.
//
// A kernel's text holds everything that depends on shapes, strides and types; addresses and numbers
// that differ between ranks or steps are arguments. So the layers of a model share their kernels,
// and a cache keyed by the text serves every run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernel.h"
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

/// "pointwise", "copy" and "fill": one kernel for the whole fused step. `args` as for a kernel of
/// the CPU: the addresses are read for their alignment only. Throws unsupported for an instruction
/// that is not defined for its type.
Source generate_pointwise(const KernelArgs& args);
/// "reduce": one kernel, or two with so many bytes of workspace between them.
std::vector<Source> generate_reduce(const KernelArgs& args);
int64_t reduce_workspace(const Step& step);
/// "gather" and "scatter_add". step_number: what a Fault names.
Source generate_gather(const KernelArgs& args, int64_t step_number);
Source generate_scatter_add(const KernelArgs& args, int64_t step_number);
/// "cumsum": sums of float32 and narrower types are kept in float64, as on the CPU.
Source generate_cumsum(const KernelArgs& args);
/// "arg_reduce".
Source generate_arg_reduce(const KernelArgs& args);
/// "top_k": lines of up to 4096 elements are sorted; of longer ones the best is looked for k times.
Source generate_top_k(const KernelArgs& args);
/// "window" and "fold".
Source generate_window(const KernelArgs& args);
Source generate_fold(const KernelArgs& args);
/// "conv".
Source generate_conv(const KernelArgs& args);
/// "attention", "attention_part" and "attention_grad", where can_attend(): one kernel, or two.
Source generate_attention(const KernelArgs& args);
std::vector<Source> generate_attention_grad(const KernelArgs& args);
bool can_attend(const Step& step);
/// "contract" by direct loops: integers, and what no matrix product can express. Nothing of a
/// pointwise program but that sums begin with operand `added`, which lies as the result does.
Source generate_contract(const KernelArgs& args, int added = -1);

/// Output 0, of bytes, gets the numbers of input 0, which are numbers of the format. Where
/// can_store_float8() of sizes and strides: 16 neighbours in the output lie evenly in the input.
Source generate_float8(const KernelArgs& args, Float8 format);
bool can_store_float8(const std::vector<int64_t>& sizes, const std::vector<int64_t>& to,
                      const std::vector<int64_t>& from);

/// The generator of a kernel whose source depends on its operands alone, or null.
using Generate = Source (*)(const KernelArgs& args);
Generate find_generator(std::string_view kernel);

}  // namespace tessera::cuda
