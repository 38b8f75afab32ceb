// The contract between the executor and the kernels of a device.
//
// A kernel is *bound* once per step and rank, with its fixed addresses: everything that depends
// only on shapes, strides and attributes happens then. run() does the work: no allocation, no
// look-up, no decision that could have been made before.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "program/program.h"

namespace tessera {

/// An operand: address of its first element, sizes and strides in elements.
struct TensorArg {
  void* data = nullptr;
  DType dtype = DType::float32;
  std::vector<int64_t> sizes, strides;
};

/// What a kernel finds wrong in data (an index out of range): the first report of a step wins and
/// is thrown by the executor at the end of the step, with the node's name.
struct DataFault {
  bool set = false;
  std::string message;
};

struct KernelArgs {
  const Step* step = nullptr;  ///< attrs, pointwise program, name
  std::vector<TensorArg> in, out;
  std::span<const int> coordinates;  ///< of this rank, one per mesh axis
  const int64_t* scalars = nullptr;  ///< the run-time scalars; they change between runs
  void* workspace = nullptr;         ///< of workspace_bytes(), or null
  DataFault* fault = nullptr;
  int64_t number = -1;  ///< of the step on a GPU: what a device::Fault names
  /// The step's part along dim `split_dim` of its results starts at element `split_first`: of a
  /// step that is shared between threads. Positions (index, mask, random) count from there.
  int split_dim = -1;
  int64_t split_first = 0;
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void run() = 0;
};

/// How threads may share a step.
struct Sharing {
  /// The dim of the first result that threads share. Every result and every aligned input has it at
  /// the same position with the same size, or has size 1 there. -1: the step is not shared.
  int dim = -1;
  double ns = 0;  ///< estimated time of the step on one thread
};

/// What the CPU has for a kernel: a row of program/kernel_table.inc.
struct KernelEntry {
  KernelKind kind = KernelKind::none;
  std::unique_ptr<Kernel> (*bind)(const KernelArgs& args) = nullptr;  ///< null: no kernel
  int64_t (*workspace_bytes)(const Step& step) = nullptr;             ///< null: none
  Sharing (*share)(const Step& step, int threads) = nullptr;          ///< null: never shared
  uint32_t aligned_inputs = ~0u;  ///< bit i: the dims of input i are those of the results
};

class ThreadPool;
/// A part of a step of less than this is not worth waking a thread for.
constexpr double kLeastPartNs = 5000;
/// Binds the kernel so that the threads of `team` share it where every part is `least_ns` or more.
std::unique_ptr<Kernel> bind_with_threads(const KernelEntry& entry, const KernelArgs& args,
                                          ThreadPool& pool, double least_ns = kLeastPartNs);
/// The workspace of a step that so many threads share.
int64_t workspace_with_threads(const KernelEntry& entry, const Step& step, int threads,
                               double least_ns = kLeastPartNs);
/// The outermost `allowed` dim of `view` that leaves no thread idle if threads share it. -1: none.
int outermost_dim(const View& view, const std::vector<char>& allowed, int threads);

/// The CPU's entry for a kernel, or null. Static data.
const KernelEntry* find_cpu_kernel(KernelKind kind);

}  // namespace tessera
