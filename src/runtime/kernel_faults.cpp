#include "runtime/kernel_faults.h"

#include "base/fail.h"

namespace tessera {

DataFault* KernelFaults::slot_of(const Step& step) {
  bound_.push_back(&step);
  return &fault_;
}

void KernelFaults::throw_if_set(const Step& step) const {
  if (!fault_.set) return;
  const Communicator& world = rank_.world;
  const std::string where =
      world.size() > 1 ? fmt::format(" (in the part of rank {})", world.rank()) : "";
  fail(ErrorKind::usage, "[{}] {}{} ({})", step.origin.name, fault_.message, where,
       step.origin.source);
}

void KernelFaults::collect() {
  const int64_t number = rank_.device.settle(fault_);
  if (fault_.set) throw_if_set(*bound_.at(static_cast<size_t>(number)));
}

}  // namespace tessera
