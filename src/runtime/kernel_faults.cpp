#include "runtime/kernel_faults.h"

#include "base/fail.h"

namespace tessera {

DataFault* KernelFaults::slot_of(const Step& step) {
  bound_.push_back(&step);
  return &fault_;
}

void KernelFaults::clear() {
  fault_ = {};
  steps_ = 0;
  position_ = INT64_MAX;
  message_.clear();
  is_of_capacity_ = false;
}

void KernelFaults::describe(const Step& step) {
  const auto* const indexed = step.find<IndexedSpec>();
  is_of_capacity_ = indexed != nullptr && indexed->capacity >= 0;
  const Communicator& world = rank_.world;
  const std::string where =
      world.size() > 1 ? fmt::format(" (in the part of rank {})", world.rank()) : "";
  const std::string what =
      indexed != nullptr && indexed->bound >= 0
          ? fmt::format("[within_bound] a count exceeds its bound of {}; give a larger one",
                        indexed->bound)
          : fmt::format("[{}] {}", step.origin.name, fault_.message);
  message_ = fmt::format("{}{} ({})", what, where, step.origin.source);
}

void KernelFaults::note(const Step& step) {
  ++steps_;
  if (!fault_.set || !message_.empty()) return;
  position_ = steps_;
  describe(step);
}

void KernelFaults::collect() {
  const int64_t number = rank_.device.settle(fault_);
  if (!fault_.set || !message_.empty()) return;
  position_ = number;
  describe(*bound_.at(static_cast<size_t>(number)));
}

}  // namespace tessera
