// Where a rank's memory lies and its steps run: the contract between the executor and a device.
//
// The executor binds every step once, with fixed addresses in the device's memory, and then runs
// them in the order of the Program. On the CPU a kernel is done when run() returns. Elsewhere run()
// enqueues: kernels in one compute lane, collectives in a lane of their own, and the order between
// lanes is kept by events, never by waiting; the host waits in read(), write() and settle() only.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/communicator.h"
#include "kernels/common/kernel.h"
#include "program/program.h"

namespace tessera {

class Device {
 public:
  virtual ~Device() = default;
  /// "cpu", "cuda:0": for reports.
  virtual std::string name() const = 0;

  /// What it does otherwise than it would best, each with the reason.
  virtual std::vector<std::string> fallbacks() const { return {}; }

  /// Zeroed memory, aligned to 256 bytes; freed with the device. Throws device errors with what is
  /// there and what is asked for; `what` it is for.
  virtual void* allocate(int64_t bytes, const char* what) = 0;
  /// What allocate() will be asked for, with what for: throws at once where it is too much.
  virtual void expect(const std::vector<std::pair<const char*, int64_t>>& all) { (void)all; }
  /// The same as allocate() in memory of the host that this device's kernels read and write in
  /// place.
  virtual void* allocate_on_host(int64_t bytes) { return allocate(bytes, "offloaded"); }
  /// Binds a step. Throws unsupported where the device cannot run it.
  virtual std::unique_ptr<Kernel> bind(const KernelArgs& args) = 0;
  /// Prepares collectives whose operands are in the device's memory. Collective over `group`.
  virtual std::unique_ptr<Operation> prepare(Communicator& group,
                                             const std::vector<Collective>& collectives) = 0;

  /// True if the host may touch the memory itself: then read() and write() are not needed.
  virtual bool is_host() const { return false; }
  /// Copies between the host and the device, in the order of what was enqueued before. read() waits
  /// for the data; write() has read the host's memory when it returns.
  virtual void read(void* host, const void* device, int64_t bytes) = 0;
  virtual void write(void* device, const void* host, int64_t bytes) = 0;

  /// Around the steps of a run, and nothing else: the calling thread works for this device, and has
  /// what it had before afterwards. See DeviceScope.
  virtual void enter() {}
  virtual void leave() noexcept {}
  /// Waits until this device touches no memory any more, of its own or of a peer: called for all
  /// devices of a process before the first of them goes. After a failure (`failed`) without waiting
  /// for peers.
  virtual void drain(bool failed) noexcept { (void)failed; }

  /// Before the steps of a run: makes the run-time scalars known to them.
  virtual void begin(const int64_t* scalars, size_t count) = 0;
  /// Among the steps of a run: gives one scalar another value, for the steps that are enqueued from
  /// now on. May be part of a capture.
  virtual void set_scalar(size_t index, int64_t value) = 0;
  /// Waits until all is done that was enqueued, and reports what kernels found wrong in data: the
  /// message in `fault` and the number of the step (in the order of bind()) as the result, or -1.
  virtual int64_t settle(DataFault& fault) = 0;
  /// True if kernels report faults at settle() only, and some bound kernel may.
  virtual bool may_fault() const { return false; }

  /// Marks the present place of the compute lane, or of that of transfers: the number of the mark
  /// since the last marks(), which waits for all and says when each was passed, in seconds since
  /// 1970.
  virtual int mark(bool transfers) = 0;
  virtual std::vector<double> marks() = 0;

  /// Records what `work` enqueues and returns a function that enqueues it all again; or an empty
  /// one where the device has no such thing. `work` must not wait.
  virtual std::function<void()> capture(const std::function<void()>& work) {
    (void)work;
    return {};
  }
  /// Why `kernel` or `operation`, bound here, cannot be part of a capture; empty if it can.
  virtual std::string why_not_captured(const Kernel& kernel) const = 0;
  virtual std::string why_not_captured(const Operation& operation) const = 0;
  /// Why running it waits for the device; empty if it only enqueues.
  virtual std::string why_waits(const Kernel& kernel) const = 0;
  virtual std::string why_waits(const Operation& operation) const = 0;

  /// True if a profiler of the device's shows ranges; else the other two are not called.
  virtual bool shows_ranges() { return false; }
  virtual void push_range(const char* text) { (void)text; }
  virtual void pop_range() {}
};

class DeviceScope {
 public:
  explicit DeviceScope(Device& device) : device_(device) { device_.enter(); }
  ~DeviceScope() { device_.leave(); }
  DeviceScope(const DeviceScope&) = delete;

 private:
  Device& device_;
};

/// The CPU: memory that peers read directly, kernels shared by `threads` threads.
std::unique_ptr<Device> make_cpu_device(Communicator& world, int threads, double least_part_ns);

}  // namespace tessera
