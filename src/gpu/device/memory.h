// The memory of a rank's GPU: the driver's or the host program's, within its limit; and pinned
// memory of the host.
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
  /// Throws a device error if so much more, by what it is for, goes beyond the limit.
  void require_room(const std::vector<std::pair<const char*, int64_t>>& more) const;
  void* pinned(int64_t bytes);
  /// The workspace of matmuls and convolutions in the compute stream.
  void* workspace();
  /// Memory of a run that has not begun: no value that somebody stored or lent.
  bool is_transient(const CudaRange& range) const;
  void release_pinned();
  void release();

 private:
  struct Block {
    const char* what;
    void* first;
    int64_t bytes;
  };
  std::string rows(const std::vector<std::pair<const char*, int64_t>>& more) const;

  const RankGpu& gpu_;
  GpuStreams& streams_;
  std::vector<Block> blocks_;
  std::vector<void*> pinned_;
  void* workspace_ = nullptr;
};

}  // namespace tessera
