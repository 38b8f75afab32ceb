// Sessions within a program that uses CUDA itself: on its GPU, in the order of its stream, within
// its memory, on its buffers. Not part of tessera.h. Needs no header of CUDA: CUstream and
// cudaStream_t are both pointers to CUstream_st.
//
//   CompileOptions options{...};
//   adopt_cuda(options, {{.device = 0, .stream = stream, .buffers = {{"x", x, bytes}}}});
//   Session session(graph, cluster, options);
//   my_kernel<<<..., stream>>>(x);
//   session.enqueue("step");  // behind my_kernel, and before what the stream is given next
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

/// Memory of a GPU that is an input or an output of a Session from its beginning to its end: the
/// part of one rank, row-major with its padding, which is zero in an input (Session::slices() tells
/// what the part is). Steps read and write it in place.
struct CudaBuffer {
  std::string name;
  void* data = nullptr;
  int64_t bytes = 0;  ///< that are there: at least those of the part
};

/// What the host program lends to one rank.
struct CudaGuest {
  int device = 0;  ///< as cudaSetDevice() and cuDeviceGet() count
  /// Of the device's primary context, which is that of the runtime API; null: the default stream.
  /// What a call of the Session enqueues runs behind what the stream was given before, and before
  /// what it is given afterwards. Calls wait for the GPU only where their contract says so; the
  /// calling thread's own device is as before when they return. Sessions over several GPUs share
  /// a stream, or each waits before another is called: collectives of two that are under way at
  /// once may wait for each other.
  CUstream_st* stream = nullptr;
  /// Bytes of the GPU that the Session may take, without `buffers` and what CUDA and NCCL take
  /// for themselves; 0: what is free.
  int64_t memory_limit = 0;
  /// Where that memory comes from, and goes: addresses are multiples of 256, null is a refusal.
  /// Called by the thread of the rank while the Session is made and ends; none: the driver's own.
  std::function<void*(int64_t bytes)> allocate = {};
  std::function<void(void* memory, int64_t bytes)> release = {};
  std::vector<CudaBuffer> buffers = {};
};

/// One for each local rank of the Cluster.
struct CudaGuests {
  std::vector<CudaGuest> ranks;
};

/// For the Sessions made with `options`, which must end before what they were lent. The Session's
/// constructor throws usage errors: not one guest for each local rank, a device or stream that is
/// not there, a buffer that is too small, not of that GPU, or of a name that is neither an input
/// nor an output; and a device error with the breakdown where `memory_limit` does not suffice.
inline void adopt_cuda(CompileOptions& options, std::vector<CudaGuest> ranks) {
  options.device = "cuda";
  options.cuda = std::make_shared<const CudaGuests>(CudaGuests{std::move(ranks)});
}

}  // namespace tessera
