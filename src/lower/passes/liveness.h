// Live ranges of the transient buffers of a function, in its order of steps.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "program/program.h"

namespace tessera {

/// From the first to the last step that touches a buffer. A collective keeps its operands and
/// results alive until its wait. A function's output is alive until the end, a double-buffered
/// buffer always.
struct LiveRange {
  int first = -1, last = -1;
};

/// True if one of the views is of `buffer`.
bool touches(const std::vector<View>& views, int buffer);

/// The live ranges of the function's own transient buffers, without those of loop bodies.
std::map<int, LiveRange> live_ranges(const Program& program, const Function& function);

/// The bytes that a buffer takes: twice its room if it is double-buffered.
int64_t whole_room_of(const Buffer& buffer);

/// Bytes of all live transient buffers at each step, as if no result took an operand's place; at a
/// loop, plus the peak of an iteration.
std::vector<int64_t> live_bytes(const Program& program, const Function& function);

/// The largest of live_bytes().
int64_t peak_live_bytes(const Program& program, const Function& function);

}  // namespace tessera
