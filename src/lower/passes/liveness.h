// Live ranges of the transient buffers of a function, in its order of steps.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "program/program.h"

namespace tessera {

/// From the step that first writes a buffer to the last that reads it. A collective keeps its
/// operands alive until its wait. What a function returns is alive until its end; a buffer that
/// alternates between iterations, all the time.
struct LiveRange {
  int first = -1, last = -1;
};

/// The live ranges of the function's own transient buffers, without those of its loops' bodies.
std::map<int, LiveRange> live_ranges(const Program& program, const Function& function);

/// The bytes that a buffer takes: twice its room if it alternates.
int64_t whole_room_of(const Buffer& buffer);

/// Bytes of all transient buffers alive at each step; at a loop, with the peak of an iteration.
std::vector<int64_t> live_bytes(const Program& program, const Function& function);

/// The largest of live_bytes().
int64_t peak_live_bytes(const Program& program, const Function& function);

}  // namespace tessera
