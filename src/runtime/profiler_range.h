// A range that the device's profiler shows while it lives.
#pragma once

#include <string>

#include "runtime/device.h"

namespace tessera {

class ProfilerRange {
 public:
  /// Without a label, nothing is shown.
  ProfilerRange(Device& device, const std::string& label)
      : device_(label.empty() ? nullptr : &device) {
    if (device_ != nullptr) device_->push_range(label.c_str());
  }
  ~ProfilerRange() {
    if (device_ != nullptr) device_->pop_range();
  }
  ProfilerRange(const ProfilerRange&) = delete;

 private:
  Device* device_;
};

}  // namespace tessera
