// How a generated kernel walks a pointwise step: its loop nest, the operands of instructions, and
// the width of accesses.
#pragma once

#include "kernels/cuda/codegen.h"

namespace tessera::cuda {

struct Walk {
  PointwiseProgram program;  ///< for "copy" and "fill": made here
  int row = -1;              ///< the step's dim of rows, which is the nest's last; -1: none
  kernels::Nest nest;        ///< outputs first, then operands that depend on the position
  std::vector<int> operand;  ///< by instruction: operand of the nest, or -1
  int width = 1;             ///< neighbouring elements per thread

  int64_t row_size() const { return nest.sizes.empty() ? 1 : nest.sizes.back(); }
  /// The stride of an operand along the innermost dim.
  int64_t inner_stride(int op) const {
    return nest.rank() == 0 ? 0 : nest.strides[static_cast<size_t>(op)].back();
  }
};

Walk make_walk(const KernelArgs& args);

/// The expression of one instruction for one element; not for loads and row instructions. offset:
/// the 64-bit offset of the operand of an index, mask or random instruction.
std::string value_text(const Walk& walk, size_t instr, Arguments& arguments,
                       const std::string& offset, const std::string& where);
/// Declares the generator of a random instruction, "Random q3(seed, stream);".
std::string random_text(const Walk& walk, size_t instr, Arguments& arguments,
                        const KernelArgs& args);

/// A step with row instructions.
Source generate_rows(const KernelArgs& args, const Walk& walk);

}  // namespace tessera::cuda
