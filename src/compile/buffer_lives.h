// When the transient buffers of a function are in use.
#pragma once

#include <map>
#include <utility>

#include "program/program.h"

namespace tessera {

/// By buffer: the first and the last step of `f` that needs it. A bucket needs its operands until
/// it is awaited. Buffers of a loop's body are those of the loop's step if `with_bodies`, and else
/// left out.
std::map<int, std::pair<int, int>> buffer_lives(const Program& program, const Function& f,
                                                bool with_bodies);

}  // namespace tessera
