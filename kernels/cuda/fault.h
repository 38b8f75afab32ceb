// The fault that a kernel found in data: one cell per device, shared by host and device.
#pragma once

namespace tessera::device {

struct Fault {
  unsigned long long step;  ///< 1 + number of the first step with a fault; 0: none
  long long index;          ///< the bad index, outside of [0, size)
  long long position;       ///< its position, row-major over the dims of the indices
  long long size;
};

}  // namespace tessera::device
