// Sessions inside a program that uses CUDA itself: on its GPU, ordered by its stream, within its
// memory limit, on its buffers. Not part of tessera.h. Needs no CUDA header: CUstream and
// cudaStream_t are both pointers to CUstream_st.
//
//   CompileOptions options{...};
//   adopt_cuda(options, {{.device = 0, .stream = stream, .buffers = {{"x", x, bytes}}}});
//   Session session(graph, cluster, options);
//   my_kernel<<<..., stream>>>(x);
//   session.enqueue("step");  // after my_kernel, before later work of the stream
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/session.h"

struct CUstream_st;

namespace tessera {

/// GPU memory that a Session uses as an input or output for its whole life: one rank's slice,
/// row-major, with its padding, which must be zero in an input (Session::slices() describes the
/// slice). Steps read and write it in place.
struct CudaBuffer {
  std::string name;
  void* data = nullptr;
  int64_t bytes = 0;  ///< size of the buffer, at least that of the slice
};

/// The resources that the host program lends to one rank.
struct CudaGuest {
  int device = 0;  ///< as in cudaSetDevice() and cuDeviceGet()
  /// A stream of the device's primary context, which the runtime API uses; null: the default
  /// stream. Work of the Session runs after earlier and before later work of this stream. Calls
  /// wait for the GPU only where their contract says so, and restore the calling thread's current
  /// device. Several Sessions over several GPUs must share a stream, or each must be waited for
  /// before another is called: concurrent collectives of two Sessions may wait for each other
  /// forever.
  CUstream_st* stream = nullptr;
  /// Bytes of GPU memory that the Session may use, without `buffers` and what CUDA and NCCL need
  /// themselves; 0: all free memory.
  int64_t memory_limit = 0;
  /// Allocator for that memory: addresses must be multiples of 256, null means refused. Called by
  /// the rank's thread while the Session is constructed and destroyed. Empty: the driver's
  /// allocator.
  std::function<void*(int64_t bytes)> allocate = {};
  std::function<void(void* memory, int64_t bytes)> release = {};
  std::vector<CudaBuffer> buffers = {};
};

/// One CudaGuest for each local rank of the Cluster.
struct CudaGuests {
  std::vector<CudaGuest> ranks;
};

/// Applies to Sessions made with `options`; they must be destroyed before the lent resources. The
/// Session's constructor throws usage errors (not one guest for each local rank; a missing device
/// or stream; a buffer that is too small, on another GPU, or whose name is neither an input nor an
/// output) and a device error with a breakdown if `memory_limit` is too small.
inline void adopt_cuda(CompileOptions& options, std::vector<CudaGuest> ranks) {
  options.device = "cuda";
  options.cuda = std::make_shared<const CudaGuests>(CudaGuests{std::move(ranks)});
}

}  // namespace tessera
