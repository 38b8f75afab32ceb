// How long the transient buffers of a function live, in its order of steps.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "runtime/program.h"

namespace tessera {

/// From the step that writes a buffer to the last that reads it. A collective holds its operands
/// until its wait; what a function returns lives to its end, and what alternates through the trip.
struct Life {
  int first = -1, last = -1;
};

/// Of the function's own transient buffers, those of the bodies of its loops left out.
std::map<int, Life> lives(const Program& program, const Function& function);

/// Its room, both of a buffer that alternates.
int64_t whole_room_of(const Buffer& buffer);

/// Bytes of all transient buffers alive at each step: at a loop also the most of any moment of a
/// trip.
std::vector<int64_t> bytes_alive(const Program& program, const Function& function);

/// The most of these.
int64_t most_alive(const Program& program, const Function& function);

}  // namespace tessera
