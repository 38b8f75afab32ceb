// How a generated kernel walks a pointwise step: its loop nest, the operand of each instruction and
// the width of its accesses.
#pragma once

#include "kernels/cuda/codegen.h"

namespace tessera::cuda {

struct Walk {
  PointwiseProgram program;  ///< of "copy" and "fill": made here
  int row = -1;              ///< the size of a row is that of the nest's last dim
  kernels::Nest nest;        ///< outputs first, then what instructions read by position
  std::vector<int> operand;  ///< of each instruction, in the nest; -1: none
  int width = 1;             ///< neighbouring elements that one thread handles together

  int64_t row_size() const { return nest.sizes.empty() ? 1 : nest.sizes.back(); }
  /// The operand's stride along the innermost dim.
  int64_t inner_stride(int op) const {
    return nest.rank() == 0 ? 0 : nest.strides[static_cast<size_t>(op)].back();
  }
};

Walk make_walk(const KernelArgs& args);

/// The text of one instruction's value for one element. Loads and row instructions are the
/// caller's.
///   offset: of the operand of an index, mask or random instruction, as a 64-bit number.
std::string value_text(const Walk& walk, size_t instr, Arguments& arguments,
                       const std::string& offset, const std::string& where);
/// "Random q3(seed, stream);" before the elements.
std::string random_text(const Walk& walk, size_t instr, Arguments& arguments,
                        const KernelArgs& args);

/// A step with row instructions.
Source generate_rows(const KernelArgs& args, const Walk& walk);

}  // namespace tessera::cuda
