// Runs a Program on one rank: arenas, bound kernels, prepared collectives.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "collectives/communicator.h"
#include "kernels/common/kernel.h"
#include "program/program.h"
#include "runtime/device.h"
#include "runtime/graph_capture.h"

namespace tessera {

/// One step of a run: see Trace::Event.
struct StepSpan {
  const Step* step = nullptr;  ///< of a wait, the collective that it ends
  bool is_transfer = false;
  double begin = 0, seconds = 0;
};

struct ExecutorOptions {
  int threads = 1;                      ///< that share the kernels of this rank
  double least_part_ns = kLeastPartNs;  ///< steps are not cut into smaller parts
  bool profile = false;                 ///< run() adds up the time of every step
  bool skip_non_finite = false;         ///< run() returns where a guard is not finite
  /// Called for every step after a run, from the thread that runs.
  std::function<void(const StepSpan&)> record = {};
  /// Buffers that lie elsewhere in the device's memory than in their arena.
  std::map<int, void*> placed = {};
};

class Executor {
 public:
  /// Allocates the arenas and binds every step of every function. Collective over `world`, whose
  /// rank r has the mesh coordinates of r, last axis fastest. `scalars` has one entry per
  /// Program::scalars and outlives the executor. device: null for the CPU.
  Executor(const Program& program, std::unique_ptr<Communicator> world, const int64_t* scalars,
           const ExecutorOptions& options, std::unique_ptr<Device> device = nullptr);
  ~Executor();

  /// Runs one function. Collective. Throws what a kernel or a collective reports, after telling the
  /// peers. `guards` are outputs of one element, equal on all ranks: if one is not finite, nothing
  /// is stored, the steps run once more with every result examined, and the error names the first
  /// node whose result is not finite; with skip_non_finite it returns instead, see skipped().
  /// `before_stores`, if given, sees all results before anything is stored; if it throws, nothing
  /// is.
  void run(int function, const std::vector<int>& guards = {},
           const std::function<void()>& before_stores = {});

  /// run() without guards that does not wait for the device. Only where why_waits() is empty.
  void enqueue(int function);
  /// The first step of a function that waits for the device, and why; empty if none does.
  std::string why_waits(int function) const;
  /// Waits for what was enqueued, and throws what kernels found wrong.
  void settle();

  /// Whether the last run stored nothing because a guard was not finite, and what this rank found:
  /// the position of the first such result among all that were examined, and a message. No
  /// position: none here.
  struct Skip {
    bool skipped = false;
    int64_t step = INT64_MAX;
    std::string message;
  };
  const Skip& skipped() const { return skip_; }
  /// Seconds that the last run waited for peers.
  double waited() const { return waited_; }

  /// Address of the first element of a port's slice, in the device's memory.
  void* data(const Port& port) const { return address(port.view); }
  Device& device() const { return *device_; }
  /// How a function is cut into regions that are captured or run step by step. Empty on the CPU.
  const std::vector<StepRange>& regions(int function) const { return regions_[function]; }
  std::span<const int> coordinates() const { return coordinates_; }
  Communicator& world() { return *world_; }
  /// Seconds and runs of step `step` of function `function` since the start, if profiled.
  std::pair<double, int64_t> time_of(int function, int step) const;
  /// Of the exchange whose first collective is `first`, of all runs, if profiled: seconds that it
  /// was under way while steps computed.
  double hidden(const Step& first) const;
  /// One time of an exchange on this rank: what its start took, and its wait by the host's clock.
  struct Held {
    double start = 0;              ///< seconds
    double arrived = 0, left = 0;  ///< seconds of the steady clock
  };
  /// The last times of it, as many on all ranks.
  std::vector<Held> held(const Step& first) const;
  /// How many times of it one of held() stands for.
  double weight_of_held(const Step& first) const;

 private:
  struct BoundLoop;
  static constexpr size_t kHeldTimes = 256;
  /// Collectives that start together.
  struct Exchange {
    std::unique_ptr<Operation> operation;
    const Step* first = nullptr;
    double started = 0, ended = 0;  ///< if profiled: of the last time; ended 0: not seen yet
    double hidden = 0;              ///< seconds of all times
    int64_t times = 0;              ///< if profiled: it was started
    std::vector<Held> held = {};    ///< if profiled: of the last kHeldTimes
    Held& now() { return held[static_cast<size_t>(times - 1) % held.size()]; }
    int64_t kept() const { return std::min<int64_t>(times, std::ssize(held)); }
  };
  struct BoundStep {
    const Step* step = nullptr;
    std::unique_ptr<Kernel> kernel;
    std::unique_ptr<BoundLoop> loop;
    Exchange* operation = nullptr;  ///< of a wait, and of the first collective of its number
    double seconds = 0;             ///< if profiled
    int64_t runs = 0;
    int mark = 0;            ///< of a collective: the start that its wait ends
    std::string label = {};  ///< if a profiler shows ranges
  };
  /// A body's steps: bound once, or once an iteration where addresses depend on the counter.
  struct BoundLoop {
    std::vector<std::vector<BoundStep>> iterations;
    std::vector<const void*> conditions;  ///< as many; null: every iteration runs
  };
  std::vector<BoundStep> bind_steps(const std::vector<Step>& steps);
  std::unique_ptr<BoundLoop> bind_loop(const Step& step);
  void set_parity(const Function& body, int64_t iteration);
  void run_loop(BoundStep& bound, bool examine);
  void* address(const View& view) const;
  Communicator& group(const std::vector<int>& axes);
  TensorArg bind_view(const View& view) const;
  std::unique_ptr<Kernel> bind_kernel(const Step& step);
  std::string why_waits(const std::vector<BoundStep>& steps) const;
  void run_step(BoundStep& bound, bool examine);
  void run_shown(BoundStep& bound, bool examine);
  void start(Exchange& exchange);
  void wait_for(Exchange& exchange);
  void advance_all();
  void run_steps(std::vector<BoundStep>& steps, size_t first, size_t last, bool examine);
  void run_regions(int function, size_t first, size_t last);
  void find_captures();
  void throw_faults();
  [[noreturn]] void throw_fault(const Step& step) const;
  void record_step(std::vector<BoundStep>& steps, size_t s, bool examine);
  void give_spans();
  bool is_finite(const Port& port) const;
  std::string examine_result(const Step& step) const;
  Collective describe(const Step& step);
  std::unique_ptr<Operation> bind_collectives(std::span<const Step> steps);

  const Program& program_;
  std::unique_ptr<Communicator> world_;
  const int64_t* given_scalars_;
  std::vector<int64_t> scalars_;  ///< those given, and the counters of loops
  bool shows_ranges_ = false;     ///< a profiler does
  std::vector<char> odd_;         ///< by buffer that alternates: bound for an odd iteration
  ExecutorOptions options_;
  std::unique_ptr<Device> device_;
  std::vector<int> coordinates_;
  std::map<std::vector<int>, std::unique_ptr<Communicator>> groups_;
  std::byte *persistent_ = nullptr, *transient_ = nullptr, *offloaded_ = nullptr;
  std::vector<std::vector<BoundStep>> functions_;
  std::deque<Exchange> operations_;
  std::vector<Exchange*> in_flight_;
  std::vector<std::vector<StepRange>> regions_;
  struct Replay {
    int runs = 0;
    std::function<void()> launch;
    std::string label = {};  ///< if a profiler shows ranges
  };
  std::vector<std::vector<Replay>> replays_;  ///< of each region
  std::vector<const Step*> bound_;            ///< in the order of Device::bind()
  DataFault fault_;
  Skip skip_;
  double waited_ = 0;
  int64_t examined_ = 0;  ///< results of this run, loops iteration by iteration
  struct Marked {
    const Step* step;
    bool is_transfer;
    int begin, end;
  };
  std::vector<Marked> marked_;  ///< if recorded: of this run
};

}  // namespace tessera
