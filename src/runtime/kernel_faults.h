// What kernels find wrong in data, such as an index out of range.
#pragma once

#include <vector>

#include "runtime/bound_step.h"

namespace tessera {

class KernelFaults {
 public:
  explicit KernelFaults(const RankContext& rank) : rank_(rank) {}
  /// Where the kernel of `step` reports. Called in the order of Device::bind(), by whose numbers a
  /// device names steps.
  DataFault* slot_of(const Step& step);
  void clear() { fault_ = {}; }
  /// Throws a usage error if the kernel of `step`, which has run on the host, reported something.
  void throw_if_set(const Step& step) const;
  /// Waits for the device and throws what its kernels reported since the last time.
  void collect();

 private:
  const RankContext& rank_;
  DataFault fault_;
  std::vector<const Step*> bound_;
};

}  // namespace tessera
