// Collectives by NCCL, which is opened when the first group is asked for. Where its header was not
// there at build time, no_groups.cpp stands in for groups.cpp.
#pragma once

#include <atomic>
#include <memory>

#include "runtime/cuda_api.h"

namespace tessera::cuda {

class Groups {
 public:
  Groups();
  /// Why there is no NCCL; empty if there is.
  const std::string& why_not() const { return why_not_; }
  std::string id();
  /// Bounded: communicators do not block, and are asked until they are ready or `seconds` are over.
  CudaGroup join(const std::string& id, int rank, int size, double seconds);
  void begin();
  void end();
  void all_reduce(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                  Combiner combiner, CudaStream stream);
  void reduce_scatter(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                      Combiner combiner, CudaStream stream);
  void all_gather(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                  CudaStream stream);
  std::string trouble(CudaGroup group);
  void abort(CudaGroup group) noexcept;

 private:
  struct Calls;
  std::shared_ptr<const Calls> calls_;
  std::string why_not_;
  std::atomic<double> seconds_{120};  ///< that a call may wait
};

}  // namespace tessera::cuda
