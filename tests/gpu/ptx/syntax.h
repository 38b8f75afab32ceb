// PTX as it is written: variables, functions and statements, without what they mean.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::test::ptx {

/// `.shared .align 4 .b8 name[32];`
struct Variable {
  std::string space;  ///< "global", "const", "shared", "local" or "param"
  std::string name;
  int64_t align = 1, bytes = 0;
  std::vector<uint8_t> content;  ///< what it begins with: `bytes`, or none
};

struct Statement {
  enum class Kind : uint8_t {
    instruction,
    label,
    registers,
    variable,
    open,
    close,
    targets
  } kind = Kind::instruction;
  int line = 0;
  std::string guard;  ///< of an instruction: the predicate's register, or empty
  bool negated = false;
  std::string opcode;                 ///< "ld.global.v4.f32"; of registers their type; a label
  std::vector<std::string> operands;  ///< or the registers: "%r<5>"; or a table's labels
  Variable variable;
  std::string text;  ///< as it stands there
};

struct Function {
  std::string name;
  bool is_entry = false;
  std::vector<Variable> results, params;
  int most_threads = 0;  ///< .maxntid, or 0
  std::vector<Statement> body;
};

struct Module {
  std::vector<Variable> variables;
  std::vector<Function> functions;
};

/// Throws with the line where it is not PTX.
Module parse(const std::string& text);

/// "ld.global.v4.f32" -> ld, global, v4, f32.
std::vector<std::string> split(const std::string& text, char separator);
/// At commas outside of brackets, without white space around.
std::vector<std::string> split_operands(const std::string& text);
/// Of "f32", "b8", "u64"; of a predicate 0.
int bytes_of_type(const std::string& type);

}  // namespace tessera::test::ptx
