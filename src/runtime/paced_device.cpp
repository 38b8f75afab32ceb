#include "runtime/paced_device.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace tessera {

namespace {

constexpr double kPoll = 1e-4;  ///< seconds

void sleep(double seconds, const std::vector<Operation*>& under_way) {
  for (Operation* operation : under_way) operation->advance();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

}  // namespace

class PacedDevice::PacedKernel final : public Kernel {
 public:
  PacedKernel(PacedDevice& device, std::unique_ptr<Kernel> kernel, double seconds)
      : device_(device), kernel_(std::move(kernel)), seconds_(seconds) {}
  void run() override {
    kernel_->run();
    device_.pace(seconds_);
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
  ~PacedOperation() override { std::erase(device_.under_way_, operation_.get()); }
  void start() override {
    operation_->start();
    device_.under_way_.push_back(operation_.get());
  }
  void wait() override {
    std::erase(device_.under_way_, operation_.get());
    if (operation_->is_in_background()) watch();
    operation_->wait();
    device_.due_ = std::max(device_.due_, host_seconds());
  }
  bool advance() override { return operation_->advance(); }
  bool is_in_background() const override { return operation_->is_in_background(); }

 private:
  /// Ranks that share a core notice arrivals up to a millisecond late, in order to leave it to
  /// others. Here that would be time that no device takes.
  void watch() {
    constexpr double kWatched = 0.1;
    const double end = host_seconds() + kWatched;
    while (!operation_->advance() && host_seconds() < end) sleep(kPoll, device_.under_way_);
  }

  PacedDevice& device_;
  std::unique_ptr<Operation> operation_;
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

void PacedDevice::pace(double seconds) {
  due_ += seconds;
  for (double left = due_ - host_seconds(); left > 0; left = due_ - host_seconds())
    sleep(std::min(left, kPoll), under_way_);
}

}  // namespace tessera
