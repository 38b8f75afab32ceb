// Instructions by opcode and modifiers: which function executes them, and how wide their operands
// are. One file a group of instructions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gpu/ptx/program.h"

namespace tessera::test::ptx {

/// "add.rn.ftz.f32".
struct Opcode {
  explicit Opcode(const std::string& opcode);
  bool has(const std::string& modifier) const;
  const std::string& type(size_t from_last = 0) const;

  std::string text;
  std::vector<std::string> parts;  ///< add, rn, ftz, f32
};

constexpr int kPredicate = 0;

struct Form {
  Handler run = nullptr;
  /// Bytes of each operand, results first: a register must have so many; -2: 2 or more.
  std::vector<int> widths;
  Flow flow = Flow::next;
  int64_t number = 0;
  bool number_is_last = false;  ///< the last operand is a number: lop3's table
  int mask = -1;                ///< Flow::warp: the operand that says which lanes; -1: all
};

/// Of these groups the first that knows the instruction.
using FindForm = std::optional<Form> (*)(const Opcode&);
std::optional<Form> find_integer(const Opcode& op);
std::optional<Form> find_floating(const Opcode& op);
std::optional<Form> find_bits(const Opcode& op);
std::optional<Form> find_predicate(const Opcode& op);
std::optional<Form> find_conversion(const Opcode& op);
std::optional<Form> find_warp(const Opcode& op);

/// Loads, stores, atomics and copies, whose operands are addresses: the decoder fills in registers.
Handler load_of(const std::string& type);
Handler store_of(const std::string& type);
Handler find_atomic(const Opcode& op);
void load_param(Warp& w, const Instruction& i);
void load_argument(Warp& w, const Instruction& i);
void store_param(Warp& w, const Instruction& i);
void to_shared(Warp& w, const Instruction& i);
void from_shared(Warp& w, const Instruction& i);
void pack(Warp& w, const Instruction& i);
void unpack(Warp& w, const Instruction& i);
void copy_async(Warp& w, const Instruction& i);
void commit_copies(Warp& w, const Instruction& i);
void wait_copies(Warp& w, const Instruction& i);
void load_matrix(Warp& w, const Instruction& i);

}  // namespace tessera::test::ptx
