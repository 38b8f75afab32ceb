// Runs a Program on one rank.
//
// Binding (step_binder.h) gives every step its addresses, kernel or collective; running
// (step_runner.h, region_runner.h) only launches them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/region_runner.h"

namespace tessera {

struct ExecutorOptions {
  int threads = 1;                      ///< that share the kernels of this rank
  double least_part_ns = kLeastPartNs;  ///< steps are not cut into smaller parts
  bool profile = false;                 ///< run() adds up the time of every step
  bool skip_non_finite = false;         ///< run() returns where a guard is not finite
  /// Called for every step after a run, from the thread that runs.
  StepRecorder::Record record = {};
  /// Buffers that lie elsewhere in the device's memory than in their arena.
  std::map<int, void*> lent = {};
};

class Executor {
 public:
  /// Allocates the arenas and binds every step of every function. Collective over `world`, whose
  /// rank r has the mesh coordinates of r, last axis fastest. `scalars` has one entry per
  /// Program::scalars and outlives the executor. device: null for the CPU.
  Executor(const Program& program, std::unique_ptr<Communicator> world, const int64_t* scalars,
           const ExecutorOptions& options, std::unique_ptr<Device> device = nullptr);
  Executor(const Executor&) = delete;

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
    int64_t position = INT64_MAX;
    std::string message;
  };
  const Skip& skipped() const { return skip_; }

  /// Address of the first element of a port's slice, in the device's memory.
  void* data(const Port& port) const { return memory_.address(port.view); }
  Device& device() const { return *device_; }
  Communicator& world() { return *world_; }
  std::span<const int> coordinates() const { return rank_.coordinates; }
  /// What its collectives took.
  const CollectiveRunner& collectives() const { return collectives_; }
  /// Seconds and runs of step `step` of function `function` since the start, if profiled.
  std::pair<double, int64_t> time_of(int function, int step) const;

 private:
  void begin();
  template <class Work>
  void report(const Work& work);

  std::unique_ptr<Communicator> world_;
  std::unique_ptr<Device> device_;
  const int64_t* given_scalars_;
  bool skip_non_finite_;
  RankContext rank_;
  RankMemory memory_;
  CollectiveRunner collectives_;
  KernelFaults faults_;
  StepRecorder recorder_;
  StepRunner steps_;
  std::vector<std::vector<BoundStep>> functions_;
  RegionRunner regions_;
  Skip skip_;
};

}  // namespace tessera
