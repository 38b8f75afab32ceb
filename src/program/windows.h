// Views of the same elements.
#pragma once

#include "program/program.h"

namespace tessera {

/// Both views have the same sizes and the same element at every index.
bool same_window(const View& x, const View& y);

/// The result, in any order of dims, is all of its buffer.
bool fills_buffer(const Program& program, const View& result);
/// All of a buffer, in order.
bool is_whole(const Program& program, const View& view);

/// True if a "matmul" adds its product to operand 2, which its result overwrites, and does
/// nothing else: y += a b.
bool adds_in_place(const Step& step);

}  // namespace tessera
