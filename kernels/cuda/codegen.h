// What the generators of CUDA source share: the text of types, literals and instructions, and the
// argument words.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "kernels/common/nest.h"
#include "kernels/cuda/generate.h"

namespace tessera::cuda {

/// The type of a register, and of an element in memory.
const char* register_type(DType t);
const char* memory_type(DType t);
/// `value` as fill and Code::constant convert it.
std::string literal(DType t, double value);
/// `x`, a float, rounded if `t` is narrow.
std::string rounded_text(DType t, const std::string& x);
/// "rA op rB" of a computing instruction, from the texts of its operands. Throws unsupported for a
/// type that it does not take; `where` names the step.
std::string expression(const PointwiseProgram& program, const Instr& instr, const std::string& a,
                       const std::string& b, const std::string& c, const std::string& where);
/// The name of the combiner in the generated text: Sum, Prod, ...
const char* combiner_name(Code code);
const char* combiner_name(Combiner combiner);

/// The argument struct of a kernel: collects words and their declarations.
class Arguments {
 public:
  explicit Arguments(const KernelArgs& args) : args_(args) {}
  /// "a.o0", "a.i2": an address.
  std::string out(int k);
  std::string in(int k);
  /// Element 0 of the run-time scalars, or the faults' cell.
  std::string scalars();
  std::string fault();
  /// The workspace of so many bytes, as elements of `type`.
  std::string workspace(int64_t bytes, const char* type);
  /// A number that may differ between ranks.
  std::string number(int64_t value);
  /// Expression `e` of the step: a number, or arithmetic on a run-time scalar.
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

/// Declares the index of each dim of a nest from the linear index in `linear`: "d0", "d1", ...
/// `type` is that of the arithmetic; the innermost dim counts in units of `inner` elements.
std::string dims_text(const kernels::Nest& nest, const std::string& linear, const char* type,
                      int64_t inner);
/// "d0 * 12 + d1": an operand's offset in elements. `wide`: 64-bit arithmetic.
std::string offset_text(const kernels::Nest& nest, int operand, int64_t inner, bool wide);
/// "int" where every index and offset of the nest fits, else "long long".
const char* index_type(const kernels::Nest& nest);

/// The whole translation unit; `before` stands before the kernel. `resident`: so many blocks should
/// fit on a multiprocessor, if any number is given.
std::string unit(const Arguments& arguments, int threads, const std::string& body,
                 const std::string& before = "",
                 const std::string& header = "kernels/cuda/device.h", int resident = 0);

}  // namespace tessera::cuda
