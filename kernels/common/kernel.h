// The contract between the executor and the kernels of a device.
//
// A kernel is *bound* once per step and rank, with its fixed addresses. Everything that depends
// only on shapes, strides and attributes is decided then. run() allocates nothing and looks nothing
// up.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "program/program.h"

namespace tessera {

class ThreadPool;

/// An operand: address of its first element, sizes and strides in elements.
struct TensorArg {
  void* data = nullptr;
  DType dtype = DType::float32;
  std::vector<int64_t> sizes, strides;
};

/// A fault that a kernel finds in data (an index out of range). The first report of a step is
/// thrown by the executor at the end of the step, with the node's name.
struct DataFault {
  bool set = false;
  std::string message;
};

struct KernelArgs {
  const Step* step = nullptr;  ///< spec, pointwise program, name
  std::vector<TensorArg> in, out;
  std::span<const int> coordinates;  ///< of this rank, one per mesh axis
  const int64_t* scalars = nullptr;  ///< the run-time scalars; they change between runs
  void* workspace = nullptr;         ///< workspace_bytes() bytes, or null
  DataFault* fault = nullptr;
  int64_t number = -1;  ///< of the step on a GPU; device::Fault reports it
  /// If several threads share the step: this part starts at element `split_first` of dim
  /// `split_dim` of the results. Positions (index, mask, random) count from there.
  int split_dim = -1;
  int64_t split_first = 0;
  /// The threads that the kernel may use itself, or null. Only if its Sharing has no dim.
  ThreadPool* pool = nullptr;
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void run() = 0;
};

/// How threads can share a step.
struct Sharing {
  /// A dim of the first result. Every result and every aligned input has this dim at the same
  /// position, with the same size or size 1. -1: cannot be cut; the kernel uses the threads of
  /// KernelArgs itself, or runs on one.
  int dim = -1;
  double ns = 0;  ///< estimated time of the step on one thread
  /// Without a dim: the workspace that each thread after the first has behind that of the step.
  int64_t bytes = 0;
  /// With a dim: the parts in which any number of threads, one too, runs the step. For kernels
  /// whose order of sums may depend on the size of the dim, as a library's matmul: dim and parts
  /// then depend on the sizes of the step alone. 0: no cut changes a bit; each thread has one part.
  int64_t parts = 0;
};

/// What the CPU has for a kernel: one row of program/kernel_table.inc.
struct KernelEntry {
  KernelKind kind = KernelKind::none;
  std::unique_ptr<Kernel> (*bind)(const KernelArgs& args) = nullptr;  ///< null: no kernel
  int64_t (*workspace_bytes)(const Step& step) = nullptr;             ///< null: none
  Sharing (*share)(const Step& step, int threads) = nullptr;          ///< null: never shared
  uint32_t aligned_inputs = ~0u;  ///< bit i: input i has the dims of the results
};

/// A part of a step that is shorter than this is not worth waking a thread.
constexpr double kLeastPartNs = 5000;
/// Binds the kernel; the threads of `pool` share it if every part takes `least_ns` or more.
std::unique_ptr<Kernel> bind_with_threads(const KernelEntry& entry, const KernelArgs& args,
                                          ThreadPool& pool, double least_ns = kLeastPartNs);
/// The workspace of a step that `threads` threads share.
int64_t workspace_with_threads(const KernelEntry& entry, const Step& step, int threads,
                               double least_ns = kLeastPartNs);
/// The parts of Sharing for a matmul that takes `ns` on one thread, of which a dim of `size` rows
/// or columns is cut: 1, 2 or a multiple of 4, of 128 rows or columns at least, and of 256 from
/// 1,024 on, so that packing the other matrix again for each takes a few percent of the time.
int64_t parts_of_matmul(int64_t size, double ns);
/// The threads that parts_of_matmul() has in mind when a dim is chosen.
constexpr int kTypicalThreads = 4;
/// Of the `allowed` dims of `view`, the one to share between threads: the outermost that leaves no
/// thread idle. -1: none.
int outermost_dim(const View& view, const std::vector<char>& allowed, int threads);

/// The CPU's entry for a kernel, or null. Points to static data.
const KernelEntry* find_cpu_kernel(KernelKind kind);

}  // namespace tessera
