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
#include "tessera/graph.h"
#include "tessera/mesh.h"

namespace tessera {

class Trace;
struct CudaGuests;
struct Machine;

struct CompileOptions {
  Mesh mesh;
  Layout layout;
  std::vector<FunctionSpec> functions;
  uint64_t seed = 0;
  /// Threads that share the kernels of one rank. 0: as many as there are cores for each local rank.
  int threads_per_rank = 0;
  /// Outputs of one element (the loss) that must be finite: where one is not, run() stores nothing
  /// and throws an error that names the first node with a non-finite result.
  std::vector<std::string> guards = {};
  /// Globs of tensor names: what matches can be fetched after a run without being an output. "*"
  /// keeps everything. A glob that matches nothing which a function computes or stores is a usage
  /// error with the nearest names.
  std::vector<std::string> keep = {};
  /// Gets the lines of print() nodes, in the root process, in the order of the model, after each
  /// run that succeeded. Given in every process or in none; empty: print() nodes do nothing.
  std::function<void(const std::string& line)> print = {};
  /// Times every step of every run: see Session::profile().
  bool profile = false;
  /// Records every step of every run there; outlives the Session.
  Trace* trace = nullptr;
  /// Where the ranks compute: "cpu"; "cuda": each on a GPU, thread ranks on shared ones; the same
  /// with "cuda:share" for processes that share a GPU; "auto": cuda if every rank has a GPU. The
  /// same for all ranks. Throws unsupported, with the reason, where there is no GPU.
  std::string device = "cpu";
  /// Where a guard is not finite run() returns instead of throwing: see Session::skipped().
  bool skip_non_finite = false;
  /// False: every collective is awaited where it starts, for comparisons.
  bool overlap = true;
  /// The machine that communication is arranged for: how much goes into one exchange, and what is
  /// cut into chunks. The same on all ranks, which compare what comes of it. None: rules that suit
  /// any machine. Throws a usage error for a machine that cannot price the mesh.
  std::shared_ptr<const Machine> machine = {};
  /// Parts that a product is cut into whose operand or result is collected over ranks and awaited
  /// there. 0: as many as pay on `machine`, none without; 1: none; more: so many where they divide.
  int chunks = 0;
  /// Keeps optimizer state in memory of the host, where the device has memory of its own: an update
  /// reads and writes it there, each element once. On the CPU, whose memory is the host's, nothing
  /// changes but what the state counts as.
  bool offload_state = false;
  /// What was computed in 16 bits is widened before it is added over ranks where its sum is wanted
  /// wider, as gradients are: no rounding between ranks, twice the bytes.
  bool wide_grad_reduce = false;
  /// What a loop adds over its iterations is added over ranks in each iteration, and kept split as
  /// its sum is: gradients of a batch in microbatches then take a slice of memory, not all of it,
  /// and are sent once a part. False: the ranks' own sums are kept whole, and added over ranks
  /// once.
  bool reduce_each_microbatch = false;
  /// Products of float32 on a GPU may round their operands to 10 bits of mantissa (tf32),
  /// which its tensor cores multiply. Sums stay float32. On the CPU nothing changes.
  bool tf32 = false;
  /// What the host program lends: set by adopt_cuda() of tessera/interop/cuda.h.
  std::shared_ptr<const CudaGuests> cuda = {};
};

/// Where a run's time goes: one step of a function, on the first local rank.
struct StepTime {
  std::string function, name, source, kernel;
  int64_t runs = 0;
  double seconds = 0;   ///< of all runs; of a collective: what its start and its wait took
  int64_t flops = 0;    ///< of one run
  int64_t bytes = 0;    ///< of one run: read and written by a kernel, sent by a collective
  int64_t results = 0;  ///< bytes of what it makes
  std::string axes;     ///< of a collective and of its wait: "data+model"; else ""
  std::optional<CollectiveKind> collective = {};  ///< of a collective
  bool waits = false;                             ///< for a collective
};

/// One exchange of a function on the first local rank: collectives that start together and have one
/// wait. Seconds are of one run, all iterations of a loop together.
struct ExchangeTime {
  std::string function, kind, axes;
  std::string tensor, source;  ///< of the first member
  int members = 1;
  int64_t bytes = 0;   ///< sent by the rank
  double exposed = 0;  ///< measured: its start, and from the last arrival to the last to go on
  double hidden = 0;   ///< measured: under way while steps computed
  double predicted_exposed = 0;  ///< zeros without a machine
  double predicted_hidden = 0;
};

/// One rank's part of a named tensor. Element (i0, i1, ...) of the slice, with i_d < valid[d], is
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

/// Thread ranks: one Session drives all ranks. MPI: every process has one and calls the same
/// methods in the same order
/// ("collective"); methods that are not are marked. After a communication or device error every
/// call throws, except slices(), which still reads the last parameters.
class Session {
 public:
  /// Compiles, plans memory, compares the Program's hash over all ranks and runs the initializers.
  /// Collective. Throws usage errors of model, layout and mesh (mesh size != cluster size).
  Session(const Graph& graph, Cluster& cluster, const CompileOptions& options);
  ~Session();
  Session(const Session&) = delete;

  /// The value of an input for the next runs, whole and equal in every process. Throws a usage
  /// error for a wrong name, dtype or number of elements. With bounded dims `whole` has the sizes
  /// set by set_size(). What the graph declares and no function reads is checked and ignored.
  /// Local.
  void feed(const std::string& input, const Array& whole);
  /// The same from memory of the caller's, which is read during the call only and goes straight to
  /// the slices, whatever the strides.
  void feed(const std::string& input, const ArrayView& whole);
  /// Fills an input slice by slice: `fill` is called for each local rank, of an input that no
  /// function reads for none. Padding is zeroed. Local.
  void feed_slices(const std::string& input, const std::function<void(const Slice&)>& fill);
  /// The actual size of a bounded dim for the next runs, under each name that rename() gave it; the
  /// same in every process. Local.
  void set_size(const std::string& dim, int64_t size);
  /// The step counter that random numbers depend on; run() of a function with updates adds 1.
  /// Local.
  void set_step(int64_t step);
  int64_t step() const;

  /// Runs a function. Collective. Throws a usage error if it reads an input that was never fed.
  void run(const std::string& function);
  /// run() that does not wait for the GPU: what it enqueues is in order with all earlier and later
  /// calls. An index out of range is not thrown before anything is stored, but by the next wait()
  /// or run(). Throws a usage error, and does nothing, where the function has to wait: guards,
  /// check_finite() and print() nodes, conditions of loops, steps and collectives that go through
  /// the host, a profile or a trace. On the CPU it is run(). Collective.
  void enqueue(const std::string& function);
  /// Waits for what was enqueued. Throws what kernels found wrong in data. Collective.
  void wait();
  /// With CompileOptions::skip_non_finite: "", or, if the last run stored nothing, the first node
  /// of all ranks with a non-finite result; the same in every process. Local.
  const std::string& skipped() const;
  /// Seconds of the last run that each local rank waited for its peers. Local.
  std::vector<double> waited() const;
  /// An output of the last run, or a parameter or state, whole in every process. Collective.
  Array fetch(const std::string& name);
  /// fetch() of a tensor of one element.
  double fetch_scalar(const std::string& name);
  /// The local ranks' parts of a parameter, state, input or output of the last run: in place on the
  /// CPU; on a GPU a copy in memory of the host, which the next call for this tensor overwrites.
  /// Local.
  std::vector<Slice> slices(const std::string& name);
  /// Takes a parameter or state of this name from a session with the same layout. Local.
  void copy_from(Session& other, const std::string& stored);
  /// "cpu", or "cuda:0" of the first local rank's GPU.
  std::string device() const;
  /// What the device does otherwise than it would best, each with the reason: steps that run on the
  /// host or by a plainer kernel, choices that cannot be kept for later runs. Local.
  std::vector<std::string> fallbacks() const;
  /// What fetch() knows after a run of `function` and the glob matches: outputs, with what
  /// CompileOptions::keep adds, in the order of the model; then its inputs, parameters and state.
  /// Local.
  std::vector<std::string> find(const std::string& function, const std::string& glob) const;
  /// Names of all parameters and state, in order.
  std::vector<std::string> stored_names() const;
  /// Overwrites a parameter or state with a whole value, equal in every process. Local.
  void assign(const std::string& stored, const Array& whole);
  /// The same slice by slice: `fill` is called for each local rank. Padding is zeroed. Local.
  void assign_slices(const std::string& stored, const std::function<void(const Slice&)>& fill);
  /// Dtype, dims and sizes of what fetch() would return, without its elements. Local.
  Array shape_of(const std::string& name) const;

  /// Bytes per rank: planned before the first run, and exactly what is allocated.
  int64_t persistent_bytes() const;
  int64_t transient_bytes() const;
  int64_t offloaded_bytes() const;  ///< of the host's memory
  /// The Program as text, and floating-point operations of one run on one rank.
  std::string program_text() const;
  int64_t flops(const std::string& function) const;
  uint64_t program_hash() const;
  /// The steps in order, if CompileOptions::profile is set; else empty. Local.
  std::vector<StepTime> profile() const;
  /// The exchanges in order of start, if CompileOptions::profile is set, with what the machine is
  /// predicted to take; else empty. What ranks of one host do in each other's memory is all
  /// exposed: nothing moves between start and wait. Collective.
  std::vector<ExchangeTime> exchanges(const Machine* machine = nullptr) const;
  Cluster& cluster();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
