// How a graph is compiled for the ranks of a Cluster.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

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
  /// Threads that may share the kernels of one rank. 0: the cores of the host over its ranks, and
  /// no more than OMP_NUM_THREADS. They are started if a kernel has work for them; no number of
  /// them changes a bit.
  int threads_per_rank = 0;
  /// Outputs of one element (the loss) that must be finite. If one is not, run() stores nothing and
  /// throws an error that names the first node with a non-finite result.
  std::vector<std::string> guards = {};
  /// Globs of tensor names: matching tensors can be fetched after a run without being outputs. "*"
  /// keeps everything. A glob that matches no tensor of any function is a usage error with the
  /// nearest names.
  std::vector<std::string> keep = {};
  /// Called in the root process with the lines of print() nodes, in the order of the model, after
  /// each run that succeeded. Set it in every process or in none; without it, print() does nothing.
  std::function<void(const std::string& line)> print = {};
  /// Called some times a second by the thread that called run(), while the run has stored nothing.
  /// True ends the run with a usage error, between two kernels. With one rank in all the Session
  /// can run again; with several it cannot.
  std::function<bool()> interrupted = {};
  /// Times every step of every run: see Session::profile().
  bool profile = false;
  /// Records every step of every run in this Trace, which must outlive the Session.
  Trace* trace = nullptr;
  /// "cpu"; "cuda": each process has a GPU of its own (ranks that are threads may share one);
  /// "cuda:share": processes may share a GPU; "auto": cuda if every rank has a GPU, else cpu. The
  /// same for all ranks. Throws unsupported, with the reason, if a rank has no GPU.
  std::string device = "cpu";
  /// If a guard is not finite, run() returns instead of throwing: see Session::skipped().
  bool skip_non_finite = false;
  /// False: every collective is awaited as soon as it starts. For comparisons.
  bool overlap = true;
  /// Sets bucket sizes and chunks of collective matmuls by this machine's predicted times. The same
  /// on all ranks, which compare the Programs that follow. Without it, rules that suit any machine
  /// apply. Throws a usage error for a machine that cannot price the mesh.
  std::shared_ptr<const Machine> machine = {};
  /// Number of chunks a matmul, or the rows of experts, is split into so that its collective
  /// overlaps its compute. 0: what `machine` predicts to be fastest (1 without one); 1: no split.
  int chunks = 0;
  /// Keeps optimizer state in host memory. An update on a GPU reads and writes each element there
  /// once. On the CPU only the report changes: the bytes count as offloaded.
  bool offload_state = false;
  /// Reduce 16-bit gradients in float32 across ranks: twice the bytes, no rounding between ranks.
  bool wide_grad_reduce = false;
  /// Reduce gradients after every microbatch and keep only this rank's shard: less memory, more
  /// bytes sent. False: accumulate whole gradients and reduce them once.
  bool reduce_each_microbatch = false;
  /// The order in which stages (`layers:pipe`) take microbatches: one of pipeline_schedules().
  std::string pipeline_schedule = "1f1b";
  /// Strict numerics: the most chunks into which a summed dim is cut, a power of two; 0: off. Every
  /// sum then has one order, which no layout, mesh or number of threads changes, so results are
  /// equal bit for bit. A rank has whole chunks, so more chunks fit more meshes and fewer cost
  /// less. On CPUs. See docs/explanation/strict-numerics.md.
  int64_t strict_chunks = 0;
  /// Float32 matmuls on a GPU may round their operands to tf32 (10 bits of mantissa) for its tensor
  /// cores; sums stay float32. No effect on the CPU.
  bool tf32 = false;
  /// Device memory that the host program lends: set by adopt_cuda() of tessera/interop/cuda.h.
  std::shared_ptr<const CudaGuests> cuda = {};
};

/// The least number of microbatches, not below `count`, that changes no bit under strict numerics:
/// each is a subtree of a sum over the batch. `count` if there is none. chunks:
/// CompileOptions::strict_chunks.
int64_t subtree_microbatches(int64_t batch, int64_t count, int64_t chunks);

}  // namespace tessera
