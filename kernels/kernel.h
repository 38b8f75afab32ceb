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
#include <string_view>
#include <vector>

#include "runtime/program.h"

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
  int threads = 1;  ///< that this rank may use
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void run() = 0;
};

struct KernelEntry {
  std::string_view name;
  std::unique_ptr<Kernel> (*bind)(const KernelArgs& args);
  int64_t (*workspace_bytes)(const Step& step) = nullptr;  ///< null: none
};

/// The kernels of the CPU device. Static data.
std::span<const KernelEntry> cpu_kernels();
/// The entry called `name`, or null.
const KernelEntry* find_cpu_kernel(std::string_view name);

}  // namespace tessera
