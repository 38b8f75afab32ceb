// A device on which every step takes the time that it is priced at.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device.h"

namespace tessera {

/// Seconds that a step is priced at.
using StepPrice = std::function<double(const Step&)>;

/// Runs steps on a device of the host, and sleeps until their price is over: what many ranks on few
/// cores do in time is then what as many devices of that speed would do. Results are the device's
/// own. Times add up from the start of a run, and from the end of a wait for what was not there
/// when it began. So what the host takes for a step, and a sleep that ends late, shorten the next
/// sleep. A transfer starts when the device would start it; the host may be a millisecond ahead in
/// between. Transfers go on while it sleeps. Steps that take longer than their price are not
/// hidden.
class PacedDevice final : public Device {
 public:
  PacedDevice(std::unique_ptr<Device> device, StepPrice price);
  ~PacedDevice() override;

  std::string name() const override { return device_->name(); }
  void* allocate(int64_t bytes, const char* what) override {
    return device_->allocate(bytes, what);
  }
  std::unique_ptr<Kernel> bind(const KernelArgs& args) override;
  std::unique_ptr<Operation> prepare(Communicator& group,
                                     const std::vector<Collective>& collectives) override;
  bool is_host() const override { return true; }
  void read(void* host, const void* device, int64_t bytes) override {
    device_->read(host, device, bytes);
  }
  void write(void* device, const void* host, int64_t bytes) override {
    device_->write(device, host, bytes);
  }
  void begin(const int64_t* scalars, size_t count) override;
  void set_scalar(size_t index, int64_t value) override { device_->set_scalar(index, value); }
  int64_t settle(DataFault& fault) override;
  int mark(bool transfers) override { return device_->mark(transfers); }
  std::vector<double> marks() override { return device_->marks(); }
  std::string why_not_captured(const Kernel& kernel) const override {
    return device_->why_not_captured(kernel);
  }
  std::string why_not_captured(const Operation& operation) const override {
    return device_->why_not_captured(operation);
  }
  std::string why_waits(const Kernel& kernel) const override { return device_->why_waits(kernel); }
  std::string why_waits(const Operation& operation) const override {
    return device_->why_waits(operation);
  }

 private:
  class PacedKernel;
  class PacedOperation;
  /// Sleeps until what ran so far would be over.
  void catch_up();
  void sleep_until(double time);
  /// Lets what is under way go on first.
  void sleep(double seconds);

  std::unique_ptr<Device> device_;
  StepPrice price_;
  double due_ = 0;  ///< when what ran so far is over, as host_seconds() counts
  std::vector<PacedOperation*> under_way_;  ///< between start and wait
};

}  // namespace tessera
