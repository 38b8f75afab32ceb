// Memory of a rank's GPU, from the driver or the host program's allocator and within its limit, and
// pinned host memory.
#pragma once

#include <utility>
#include <vector>

#include "gpu/device/streams.h"

namespace tessera {

class GpuMemory {
 public:
  GpuMemory(const RankGpu& gpu, GpuStreams& streams) : gpu_(gpu), streams_(streams) {}
  GpuMemory(const GpuMemory&) = delete;

  /// See Device.
  void* allocate(int64_t bytes, const char* what);
  void* allocate_on_host(int64_t bytes);
  /// Throws a device error if these further allocations (purpose, bytes) would exceed the limit.
  void require_room(const std::vector<std::pair<const char*, int64_t>>& more) const;
  void* pinned(int64_t bytes);
  /// The workspace of matmuls and convolutions on the compute stream.
  void* workspace();
  /// True for transient memory of a run that has not begun: it holds no stored or borrowed value.
  bool is_transient(const CudaRange& range) const;
  void release_pinned();
  void release();

 private:
  struct Block {
    const char* what;
    void* first;
    int64_t bytes;
  };
  int64_t left_by(const char* what, int64_t total) const;
  void* from_driver(int64_t bytes, const char* what);
  std::string rows(const std::vector<std::pair<const char*, int64_t>>& more) const;

  const RankGpu& gpu_;
  GpuStreams& streams_;
  std::vector<Block> blocks_;
  std::vector<void*> pinned_;
  void* workspace_ = nullptr;
};

}  // namespace tessera
