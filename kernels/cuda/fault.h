// The fault that a kernel found in data: one cell per device, shared by host and device.
#pragma once

namespace tessera::device {

enum FaultKind : long long { kIndexFault, kQuerySegmentsFault, kKeySegmentsFault };

struct Fault {
  unsigned long long step;  ///< 1 + number of the first step with a fault; 0: none
  long long kind;           ///< a FaultKind
  long long index;          ///< the bad index, outside of [0, size); or the segment that goes back
  long long position;  ///< its position, row-major over the dims of the indices; in the sequence
  long long size;      ///< or the segment before it
};

}  // namespace tessera::device
