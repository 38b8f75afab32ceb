// Runs a Program on one rank.
//
// Binding (step_binder.h) gives every step its addresses, kernel or collective; running
// (step_runner.h, region_runner.h) only launches them.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/paced_device.h"
#include "runtime/region_runner.h"

namespace tessera {

struct ExecutorOptions {
  int threads = 1;                      ///< that share the kernels of this rank
  double least_part_ns = kLeastPartNs;  ///< steps are not cut into smaller parts
  bool profile = false;                 ///< run() adds up the time of every step
  /// Called for every step after a run, from the thread that runs.
  StepRecorder::Record record = {};
  /// Notes the steps that run, for watchers; null: nowhere. Outlives the executor.
  RankActivity* activity = nullptr;
  /// Buffers that lie elsewhere in the device's memory than in their arena.
  std::map<int, void*> lent = {};
  /// By tensor: its line in the model, for messages about one of several results of a step.
  std::shared_ptr<const std::map<std::string, std::string>> sources = {};
  /// On the CPU: every step takes as long as it says. Empty: as long as it takes.
  StepPrice pace = {};
  /// Asked some times a second by the thread that runs, while a run has stored nothing. True ends
  /// the run: a rank that is alone can run again, ranks that have peers fail. Empty: not asked.
  std::function<bool()> interrupted = {};
};

class Executor {
 public:
  /// Allocates the arenas and binds every step of every function. Collective over `world`, whose
  /// rank r has the mesh coordinates of r, last axis fastest. `scalars` has one entry per
  /// Program::scalars and outlives the executor. device: null for the CPU.
  Executor(const Program& program, std::unique_ptr<Communicator> world, const int64_t* scalars,
           const ExecutorOptions& options, std::unique_ptr<Device> device = nullptr);
  Executor(const Executor&) = delete;

  /// Runs one function. Collective. Throws what a collective reports, after telling the peers.
  /// Before anything is stored, all ranks agree on whether to go on, and nothing is stored if
  ///   - a kernel found something wrong in data, such as an index out of range, on some rank;
  ///   - `check`, if given, which sees all results and decides alike on all ranks, returns a text;
  ///   - one of `guards`, outputs of one element that are equal on all ranks, is not finite. The
  ///     steps then run once more with every result examined.
  /// Then run() returns with stopped() set, and the executor can run again.
  void run(int function, const std::vector<int>& guards = {},
           const std::function<std::string()>& check = {});

  /// run() without guards that does not wait for the device. Only where why_waits() is empty.
  void enqueue(int function);
  /// The first step of a function that waits for the device, and why; empty if none does.
  std::string why_waits(int function) const;
  /// Waits for what was enqueued, and throws what kernels found wrong.
  void settle();

  /// Why the last run stored nothing: the same on all ranks but for what each found.
  struct Stopped {
    /// capacity: a count exceeds it on some rank, before anything was stored.
    enum class By { nothing, fault, capacity, check, guard, interrupt } by = By::nothing;
    /// The place of what this rank found: a smaller one comes earlier in the run. INT64_MAX:
    /// nothing was found here.
    int64_t position = INT64_MAX;
    std::string message;
    /// False after a fault in the steps that store: some of them have.
    bool before_stores = true;
  };
  const Stopped& stopped() const { return stopped_; }

  /// Address of the first element of a port's slice, in the device's memory.
  void* data(const Port& port) const { return memory_.address(port.view); }
  Device& device() const { return *device_; }
  Communicator& world() { return *world_; }
  std::span<const int> coordinates() const { return rank_.coordinates; }
  /// What its collectives took.
  const CollectiveRunner& collectives() const { return collectives_; }
  /// Seconds and runs since the start, if profiled.
  struct StepTotal {
    double seconds = 0;
    int64_t runs = 0;
  };
  /// The steps of a function that ran, those of loops too. A loop's own entry has all of its time.
  std::map<const Step*, StepTotal> times_of(int function) const;

 private:
  void begin();
  bool stops_for_faults(int function, bool before_stores);
  bool stops_for_guards(int function, const std::vector<int>& guards);
  void stop(Stopped why);
  template <class Work>
  void report(const Work& work);

  std::unique_ptr<Communicator> world_;
  std::unique_ptr<Device> device_;
  const int64_t* given_scalars_;
  RankContext rank_;
  RankMemory memory_;
  CollectiveRunner collectives_;
  KernelFaults faults_;
  std::shared_ptr<const std::map<std::string, std::string>> sources_;
  StepRecorder recorder_;
  StepRunner steps_;
  std::vector<std::vector<BoundStep>> functions_;
  RegionRunner regions_;
  Stopped stopped_;
  /// Twice the least position of a fault of all ranks, plus 1 unless it is of a capacity.
  struct FirstFault {
    int64_t mine = INT64_MAX, of_all = INT64_MAX;
    std::unique_ptr<Operation> operation;  ///< null with one rank
  };
  FirstFault first_fault_;
  Step agreement_;                              ///< on it, as watchers see it
  bool enqueued_ = false;                       ///< since faults were last collected
  std::vector<std::array<bool, 2>> may_fault_;  ///< by function: before stores, and from there on
};

}  // namespace tessera
