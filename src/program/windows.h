// Views of the same elements.
#pragma once

#include "program/program.h"

namespace tessera {

/// Both views have the same sizes and the same element at every index.
bool same_window(const View& x, const View& y);

/// True if a "contract" adds its product to operand 2, which its result overwrites, and does
/// nothing else: y += a b.
bool adds_in_place(const Step& step);

}  // namespace tessera
