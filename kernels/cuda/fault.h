// What a kernel finds wrong in data: one cell a device, for host and device.
#pragma once

namespace tessera::device {

struct Fault {
  unsigned long long step;  ///< 1 + the number of the step that found something first, or 0
  long long index;          ///< outside [0, size)
  long long position;       ///< of the index, row-major over the dims of the indices
  long long size;
};

}  // namespace tessera::device
