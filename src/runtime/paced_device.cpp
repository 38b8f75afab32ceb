#include "runtime/paced_device.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace tessera {

namespace {

constexpr double kPoll = 1e-4;     ///< seconds between looks at transfers
constexpr double kAhead = 1e-3;    ///< how much of the device's time may be left when a step ends
constexpr double kYielded = 1e-4;  ///< a sleep may end so much late

}  // namespace

class PacedDevice::PacedKernel final : public Kernel {
 public:
  PacedKernel(PacedDevice& device, std::unique_ptr<Kernel> kernel, double seconds)
      : device_(device), kernel_(std::move(kernel)), seconds_(seconds) {}
  void run() override {
    kernel_->run();
    device_.due_ += seconds_;
    device_.sleep_until(device_.due_ - kAhead);
  }

 private:
  PacedDevice& device_;
  std::unique_ptr<Kernel> kernel_;
  double seconds_;
};

class PacedDevice::PacedOperation final : public Operation {
 public:
  PacedOperation(PacedDevice& device, std::unique_ptr<Operation> operation)
      : device_(device), operation_(std::move(operation)) {}
  ~PacedOperation() override { std::erase(device_.under_way_, this); }
  void start() override {
    device_.catch_up();
    operation_->start();
    is_complete_ = false;
    device_.under_way_.push_back(this);
  }
  void wait() override {
    device_.catch_up();
    const bool was_complete = look();
    std::erase(device_.under_way_, this);
    if (!was_complete && operation_->is_in_background()) watch();
    operation_->wait();
    if (!was_complete) device_.due_ = std::max(device_.due_, host_seconds());
  }
  bool advance() override { return look(); }
  bool is_in_background() const override { return operation_->is_in_background(); }
  /// Lets it go on. True if it is complete.
  bool look() { return is_complete_ = is_complete_ || operation_->advance(); }

 private:
  /// Ranks that share a core notice arrivals up to a millisecond late, in order to leave it to
  /// others. Here that would be time that no device takes.
  void watch() {
    constexpr double kWatched = 2;
    const double end = host_seconds() + kWatched;
    while (!look() && host_seconds() < end) device_.sleep(kPoll);
  }

  PacedDevice& device_;
  std::unique_ptr<Operation> operation_;
  bool is_complete_ = false;
};

PacedDevice::PacedDevice(std::unique_ptr<Device> device, StepPrice price)
    : device_(std::move(device)), price_(std::move(price)) {}

PacedDevice::~PacedDevice() = default;

std::unique_ptr<Kernel> PacedDevice::bind(const KernelArgs& args) {
  return std::make_unique<PacedKernel>(*this, device_->bind(args), price_(*args.step));
}

std::unique_ptr<Operation> PacedDevice::prepare(Communicator& group,
                                                const std::vector<Collective>& collectives) {
  return std::make_unique<PacedOperation>(*this, device_->prepare(group, collectives));
}

void PacedDevice::begin(const int64_t* scalars, size_t count) {
  device_->begin(scalars, count);
  due_ = host_seconds();
}

int64_t PacedDevice::settle(DataFault& fault) {
  catch_up();
  return device_->settle(fault);
}

void PacedDevice::catch_up() {
  sleep_until(due_ - kYielded);
  while (host_seconds() < due_) std::this_thread::yield();
}

void PacedDevice::sleep_until(double time) {
  for (double left = time - host_seconds(); left > 0; left = time - host_seconds())
    sleep(std::min(left, kPoll));
}

void PacedDevice::sleep(double seconds) {
  for (PacedOperation* operation : under_way_) operation->look();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

}  // namespace tessera
