// Collectives with NCCL, which is opened at first use.
#pragma once

#include <atomic>
#include <memory>

#include "gpu/device/cuda_nccl.h"

namespace tessera::cuda {

class Nccl final : public CudaNcclApi {
 public:
  Nccl();
  /// Why NCCL is not available; empty if it is.
  const std::string& why_not() const { return why_not_; }
  std::string group_id() override;
  /// Bounded: communicators are non-blocking and polled for at most `seconds`.
  CudaGroup join(const std::string& id, int rank, int size, double seconds) override;
  void begin_calls() override;
  void end_calls() override;
  void all_reduce(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                  Combiner combiner, CudaStream stream) override;
  void reduce_scatter(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                      Combiner combiner, CudaStream stream) override;
  void all_gather(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                  CudaStream stream) override;
  std::string trouble(CudaGroup group) override;
  void abort(CudaGroup group) noexcept override;

 private:
  struct Calls;
  std::shared_ptr<const Calls> calls_;
  std::string why_not_;
  std::atomic<double> seconds_{120};  ///< time-out of a call
};

}  // namespace tessera::cuda
