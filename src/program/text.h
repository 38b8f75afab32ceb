// The text of a Program, its only form outside of a process. A line of it:
//
//   y:float32[4,8]/[8,1] = matmul(x:float32[4,1,16]/[16,0,1], w:...) kinds=[row,column,sum]
//
// is results, kernel or collective, operands (buffer, dtype, sizes, strides), spec and expressions.
#pragma once

#include <string>

#include "program/program.h"

namespace tessera {

/// to_string(program) with the notes that no rank needs to agree on (flops, bytes, names, source
/// lines and reasons) and with a hash of all as the last line.
std::string write_program(const Program& program);

/// Reads the text of write_program(). Throws an io error with the line and the reason if the text
/// is of another version, incomplete, edited (the hash) or no Program. A step of a user's own op
/// gets its name and attributes, not its function.
Program read_program(const std::string& text);

}  // namespace tessera
