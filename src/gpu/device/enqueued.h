// Properties of a kernel or collective of the CUDA device.
#pragma once

#include <string>

namespace tessera {

/// Why it cannot be captured, and why it waits for the GPU; empty if it can, or does not.
class Enqueued {
 public:
  virtual ~Enqueued() = default;
  virtual std::string why_not_captured() const { return {}; }
  virtual std::string why_waits() const { return {}; }
};

}  // namespace tessera
