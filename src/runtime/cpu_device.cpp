#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/fail.h"
#include "kernels/cpu/thread_pool.h"
#include "runtime/device.h"

namespace tessera {
namespace {

class CpuDevice final : public Device {
 public:
  CpuDevice(Communicator& world, int threads, double least_part_ns)
      : world_(world), pool_(threads), least_part_ns_(least_part_ns) {}

  std::string name() const override { return "cpu"; }
  /// Memory that is not there would not be there after a restart: no failure of the device.
  void* allocate(int64_t bytes, const char*) override {
    try {
      return world_.allocate(std::max<int64_t>(bytes, 64));
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::device) throw;
      throw Error(
          ErrorKind::unsupported,
          fmt::format("{}; give more ranks or a smaller model, or --memory LIMIT to be told "
                      "what would fit",
                      e.what()));
    }
  }
  std::unique_ptr<Kernel> bind(const KernelArgs& args) override {
    const Step& step = *args.step;
    const KernelEntry* entry = find_cpu_kernel(step.kernel);
    if (entry == nullptr) {
      fail(ErrorKind::unsupported, "[{}] there is no CPU kernel '{}' ({})", step.origin.name,
           name_of(step), step.origin.source);
    }
    return bind_with_threads(*entry, args, pool_, least_part_ns_);
  }
  std::unique_ptr<Operation> prepare(Communicator& group,
                                     const std::vector<Collective>& collectives) override {
    return group.prepare(collectives);
  }
  bool is_host() const override { return true; }
  void read(void* host, const void* device, int64_t bytes) override {
    std::memcpy(host, device, static_cast<size_t>(bytes));
  }
  void write(void* device, const void* host, int64_t bytes) override {
    std::memcpy(device, host, static_cast<size_t>(bytes));
  }
  void begin(const int64_t*, size_t) override {}
  void set_scalar(size_t, int64_t) override {}
  int64_t settle(DataFault&) override { return -1; }
  int mark(bool) override {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    marks_.push_back(std::chrono::duration<double>(now).count());
    return static_cast<int>(marks_.size()) - 1;
  }
  std::vector<double> marks() override { return std::exchange(marks_, {}); }
  std::string why_not_captured(const Kernel&) const override { return "it runs on the CPU"; }
  std::string why_not_captured(const Operation&) const override { return "it runs on the CPU"; }
  std::string why_waits(const Kernel&) const override { return "it runs on the CPU"; }
  std::string why_waits(const Operation&) const override { return "it runs on the CPU"; }

 private:
  Communicator& world_;
  ThreadPool pool_;
  double least_part_ns_;
  std::vector<double> marks_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(Communicator& world, int threads, double least_part_ns) {
  return std::make_unique<CpuDevice>(world, threads, least_part_ns);
}

}  // namespace tessera
