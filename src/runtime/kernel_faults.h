// What kernels find wrong in data, such as an index out of range.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/bound_step.h"

namespace tessera {

class KernelFaults {
 public:
  explicit KernelFaults(const RankContext& rank) : rank_(rank) {}
  /// Where the kernel of `step` reports. Called in the order of Device::bind(), by whose numbers a
  /// device names steps.
  DataFault* slot_of(const Step& step);
  void clear();
  /// After `step` has run on the host: notes what its kernel reported, if it is the first.
  void note(const Step& step);
  /// Waits for the device and notes what its kernels reported since the last time.
  void collect();

  /// Where the first fault was: the same number on all ranks for the same step and iteration.
  /// INT64_MAX: there is none.
  int64_t position() const { return position_; }
  const std::string& message() const { return message_; }
  /// True if the first fault is a count above the capacity of its dispatch (ops/capacity.h).
  bool is_of_capacity() const { return is_of_capacity_; }

 private:
  void describe(const Step& step);

  const RankContext& rank_;
  DataFault fault_;
  std::vector<const Step*> bound_;
  int64_t steps_ = 0, position_ = INT64_MAX;
  std::string message_;
  bool is_of_capacity_ = false;
};

}  // namespace tessera
