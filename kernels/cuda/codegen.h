// Shared by the generators of CUDA source: texts of types, literals and instructions, and the
// argument words.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "kernels/common/nest.h"
#include "kernels/cuda/generate.h"

namespace tessera::cuda {

inline constexpr int kThreads = 256;  ///< of a block, where a kernel does not choose
/// The C++ type of a register, and of an element in memory.
const char* register_type(DType t);
const char* memory_type(DType t);
/// `value` as a literal, converted like fill and PointwiseOp::constant do.
std::string literal(DType t, double value);
/// The expression `x`, a float, rounded if `t` has 16 bits.
std::string rounded_text(DType t, const std::string& x);
/// The expression of a computing instruction, given the texts of its operands. Throws unsupported
/// for a type that the instruction does not take; `where` names the step.
std::string expression(const PointwiseProgram& program, const Instr& instr, const std::string& a,
                       const std::string& b, const std::string& c, const std::string& where);
/// The name of the formula (Sum, Prod, ...) of a row instruction or combiner.
const char* combiner_name(PointwiseOp code);
const char* combiner_name(Combiner combiner);

/// The argument struct of a kernel: collects words and declarations.
class Arguments {
 public:
  explicit Arguments(const KernelArgs& args) : args_(args) {}
  /// The address of an operand: "a.o0", "a.i2".
  std::string out(int k);
  std::string in(int k);
  /// The address of the run-time scalars, or of the fault cell.
  std::string scalars();
  std::string fault();
  /// The address of `bytes` bytes of workspace, as elements of `type`.
  std::string workspace(int64_t bytes, const char* type);
  /// A number that may differ between ranks, as an argument.
  std::string number(int64_t value);
  /// Expression `e` of the step: a number argument, or arithmetic on a run-time scalar.
  std::string expr(int e);

  /// "struct Args { ... };"
  std::string declaration() const;
  std::vector<Word> words() const { return words_; }

 private:
  std::string add(Word::Kind kind, int index, int64_t number, const std::string& type,
                  const std::string& name);
  const KernelArgs& args_;
  std::vector<Word> words_;
  std::vector<std::string> fields_;
};

/// Declares the index of each dim of a nest, "d0", "d1", ..., from the linear index `linear`.
/// `type` is the type of the arithmetic; the innermost dim counts in units of `inner` elements.
std::string dims_text(const kernels::Nest& nest, const std::string& linear, const char* type,
                      int64_t inner);
/// An operand's offset in elements: "d0 * 12 + d1". `wide`: 64-bit arithmetic.
std::string offset_text(const kernels::Nest& nest, int operand, int64_t inner, bool wide);
/// "int" if every index and offset of the nest fits, else "long long".
const char* index_type(const kernels::Nest& nest);

/// The whole translation unit. `before` is placed before the kernel. `resident`: how many blocks
/// should fit on a multiprocessor; 0: any.
std::string unit(const Arguments& arguments, int threads, const std::string& body,
                 const std::string& before = "",
                 const std::string& header = "kernels/cuda/device.h", int resident = 0);

}  // namespace tessera::cuda
