// A compiled Program bound to a Cluster: the run object.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/array.h"
#include "tessera/cluster.h"
#include "tessera/collectives.h"
#include "tessera/compile_options.h"
#include "tessera/compiled_program.h"

namespace tessera {

/// The time of one step of a function on the first local rank.
struct StepTime {
  std::string function, name, source, kernel;
  int64_t runs = 0;
  double seconds = 0;   ///< of all runs; of a collective its start, of a loop without its steps
  int64_t flops = 0;    ///< of one run of the function: of a step in a loop, all iterations
  int64_t bytes = 0;    ///< the same: read and written by a kernel, sent by a collective
  int64_t results = 0;  ///< bytes of its results
  std::string axes;     ///< of a collective and of its wait: "data+model"; else ""
  std::optional<CollectiveKind> collective = {};  ///< of a collective
  bool waits = false;                             ///< for a collective
};

struct KernelReport;  // tessera/explain.h

/// The time of one bucket of a function on the first local rank. A bucket is one collective, or
/// several that start together and have one wait. Seconds of one run, all iterations of a loop
/// together.
struct BucketTime {
  std::string function, kind, axes;
  std::string tensor, source;  ///< of the first collective
  int collectives = 1;
  int64_t bytes = 0;  ///< sent by the rank
  /// Measured: its start, and from the arrival of the last rank until the last rank goes on.
  double exposed = 0;
  double hidden = 0;             ///< measured: in flight while steps computed
  double predicted_exposed = 0;  ///< zeros without a machine
  double predicted_hidden = 0;
};

/// One rank's slice of a named tensor. Element (i0, i1, ...) of the slice, with i_d < valid[d], is
/// element (offset[d] + i_d) of the whole and lies at data + sum i_d * strides[d] elements. The
/// rest of the slice is padding.
struct Slice {
  int rank = 0;
  void* data = nullptr;
  DType dtype = DType::float32;
  std::vector<std::string> dims;
  std::vector<int64_t> offset, valid, strides;
  bool is_owner = false;  ///< of several ranks with the same part, the one that writes it out
};

/// A compiled Program bound to a Cluster. Where ranks are threads, one Session drives them all.
/// Under MPI every process has one Session, and all call the same methods in the same order;
/// methods marked "local" are exempt. After a communication or device error every call throws,
/// except slices(), which still reads the last parameters. Usage errors name the method and the
/// caller's line: "[feed] ... (train.cpp:41)". The Sessions of one Cluster are used by one thread
/// at a time; where another one runs something, run(), enqueue() and the constructor throw a usage
/// error and do nothing.
class Session {
 public:
  /// Compiles, plans memory, compares the Program's hash over all ranks and runs the initializers.
  /// Collective. Throws usage errors of model, layout and mesh (mesh size != cluster size).
  Session(const Graph& graph, Cluster& cluster, const CompileOptions& options,
          Loc at = Loc::current());
  ~Session();
  Session(const Session&) = delete;

  /// The value of an input for the next runs, whole and equal in every process. Bounded dims have
  /// the sizes of set_size(). Throws a usage error for a wrong name, dtype or number of elements.
  /// An input that no function reads is checked and ignored. Local.
  void feed(const std::string& input, const Array& whole, Loc at = Loc::current());
  /// The same from the caller's memory, with any strides. It is read during the call only.
  void feed(const std::string& input, const ArrayView& whole, Loc at = Loc::current());
  /// Fills an input slice by slice: `fill` is called once for each local rank; never for an input
  /// that no function reads. Padding is zeroed. Local.
  void feed_slices(const std::string& input, const std::function<void(const Slice&)>& fill,
                   Loc at = Loc::current());
  /// The actual size of a bounded dim for the next runs, under every name that rename() gave it.
  /// Dims that reshape() made of it and others get their multiple of it. The same in every process.
  /// Inputs with such a dim have to be fed again, and outputs to be made again. Local.
  void set_size(const std::string& dim, int64_t size, Loc at = Loc::current());
  /// The step counter that random numbers depend on; run() of a function with updates adds 1.
  /// Local.
  void set_step(int64_t step, Loc at = Loc::current());
  int64_t step() const;

  /// Runs a function. Collective. Throws a usage error if it reads an input that was never fed.
  /// What CompileOptions::print throws passes through, after everything was stored and step()
  /// counted.
  void run(const std::string& function, Loc at = Loc::current());
  /// run() that does not wait for the GPU; its work is ordered with all earlier and later calls. An
  /// index out of range is thrown by the next wait() or run(), when updates have been stored.
  /// Throws a usage error, and does nothing, where the function has to wait: guards,
  /// check_finite() and print() nodes, conditions of loops, steps and collectives that go through
  /// the host, a profile or a trace. On the CPU it is run(). Collective.
  void enqueue(const std::string& function, Loc at = Loc::current());
  /// Waits for what was enqueued. Throws the faults that kernels found in data. Collective.
  void wait();
  /// With CompileOptions::skip_non_finite: if the last run stored nothing, a message with the first
  /// node of all ranks whose result was not finite; else "". The same in every process. Local.
  const std::string& skipped() const;
  /// Seconds that each local rank waited for its peers in the last run. Local.
  std::vector<double> waited() const;

  /// An output of the last run, or a parameter or state, whole in every process. Collective.
  Array fetch(const std::string& name, Loc at = Loc::current());
  /// fetch() of a tensor of one element.
  double fetch_scalar(const std::string& name, Loc at = Loc::current());
  /// The local ranks' slices of a parameter, state, input or output of the last run: in place on
  /// the CPU; on a GPU a copy in host memory, which the next call for this tensor overwrites.
  /// Local.
  std::vector<Slice> slices(const std::string& name, Loc at = Loc::current());
  /// Dtype, dims and sizes that fetch() would return, without elements. Local.
  Array shape_of(const std::string& name, Loc at = Loc::current()) const;
  /// Overwrites a parameter or state with a whole value, equal in every process. Local.
  void assign(const std::string& stored, const Array& whole, Loc at = Loc::current());
  /// The same from the caller's memory, with any strides. It is read during the call only.
  void assign(const std::string& stored, const ArrayView& whole, Loc at = Loc::current());
  /// The same slice by slice: `fill` is called once for each local rank. Padding is zeroed. Local.
  void assign_slices(const std::string& stored, const std::function<void(const Slice&)>& fill,
                     Loc at = Loc::current());
  /// Copies the parameter or state of this name from a session with the same layout. Local.
  void copy_from(Session& other, const std::string& stored, Loc at = Loc::current());

  /// What it runs: text, hash, memory, names. Local.
  CompiledProgram program() const;
  Cluster& cluster();
  /// "cpu", or "cuda:0" of the first local rank's GPU. Local.
  std::string device() const;
  /// What the device does otherwise than it would best, each with the reason: steps that run on the
  /// host or by a slower kernel, choices that cannot be kept for later runs. Local.
  std::vector<std::string> fallbacks() const;
  /// The steps in order, those of a loop behind it, if CompileOptions::profile is set. Local.
  std::vector<StepTime> profile() const;
  /// The buckets in the order in which they start, if CompileOptions::profile is set, with the
  /// times that `machine` predicts; else empty. Collectives between ranks of one host are exposed
  /// as a whole: nothing moves between start and wait. Collective.
  std::vector<BucketTime> bucket_times(const Machine* machine = nullptr) const;
  /// The kernels of a function, if CompileOptions::profile is set and it has run; else empty. Times
  /// of one run, measured, predicted for `machine` and at its roofline. The row that loses most
  /// time against the roofline comes first. Local. Throws the usage errors of
  /// explain() for a machine that lacks a link class or dtype.
  std::vector<KernelReport> kernel_times(const std::string& function, const Machine& machine) const;

 private:
  struct State;
  struct Release {
    void operator()(State* state) const;
  };
  std::unique_ptr<State, Release> state_;
};

}  // namespace tessera
