// Generated kernels with their arguments, and what all of them share on the GPU: the run-time
// scalars and the fault cell.
#pragma once

#include <optional>
#include <vector>

#include "gpu/device/memory.h"
#include "kernels/cuda/fault.h"
#include "kernels/cuda/generate.h"

namespace tessera {

class GpuKernels {
 public:
  GpuKernels(const RankGpu& gpu, const GpuStreams& streams, GpuMemory& memory)
      : gpu_(gpu), streams_(streams), memory_(memory) {}
  GpuKernels(const GpuKernels&) = delete;

  /// Allocates memory for scalars and faults. To be called first.
  void allocate();
  CudaLaunch make_launch(const cuda::Source& source, const KernelArgs& args);
  /// A dense or strided copy on the GPU; with `format`, a conversion to 8-bit numbers of that
  /// format.
  CudaLaunch make_copy(const TensorArg& from, const TensorArg& to,
                       std::optional<Float8> format = {});
  /// Sets the run-time scalars for the kernels that are enqueued from now on.
  void set_scalars(const int64_t* scalars, size_t count);
  /// Sets one of them. A graph that this is captured in leaves the same value at each replay.
  void set_scalar(size_t index, int64_t value);
  /// In GPU memory: the first fault that a kernel found.
  device::Fault* fault() const { return fault_; }
  /// True if some kernel can report a fault.
  bool may_fault() const { return may_fault_; }

 private:
  void send_scalars(const int64_t* scalars, size_t count);

  const RankGpu& gpu_;
  const GpuStreams& streams_;
  GpuMemory& memory_;
  void* scalars_ = nullptr;  ///< on the GPU
  std::vector<int64_t> sent_;
  device::Fault* fault_ = nullptr;
  bool may_fault_ = false;
};

/// The memory that a view touches.
CudaRange range_of(const TensorArg& arg);

}  // namespace tessera
