// When each step of a run began and ended, by the device's clock: what a Trace is made of.
#pragma once

#include <functional>
#include <vector>

#include "runtime/bound_step.h"

namespace tessera {

/// One step of a run: see Trace::Event.
struct StepSpan {
  const Step* step = nullptr;  ///< of a wait, the collective that it ends
  bool is_transfer = false;
  double begin = 0, seconds = 0;
};

class StepRecorder {
 public:
  using Record = std::function<void(const StepSpan&)>;
  StepRecorder(Device& device, Record record) : device_(device), record_(std::move(record)) {}
  explicit operator bool() const { return static_cast<bool>(record_); }

  /// Calls run(), which runs steps[s], between two marks. A collective is one span in the lane of
  /// transfers, from its start to the end of its wait; the wait is a span of the compute lane.
  void run(std::vector<BoundStep>& steps, size_t s, const std::function<void()>& run);
  /// Hands over the spans of all steps since the last call; waits for the device.
  void flush();

 private:
  struct Marked {
    const Step* step;
    bool is_transfer;
    int begin, end;
  };
  Device& device_;
  Record record_;
  std::vector<Marked> marked_;
};

}  // namespace tessera
