// What the device asks of NCCL: collectives of a group of ranks that have a GPU each.
#pragma once

#include "gpu/device/cuda_types.h"

namespace tessera {

class CudaNcclApi {
 public:
  virtual ~CudaNcclApi() = default;
  /// 128 bytes that name a group, made by its rank 0.
  virtual std::string group_id() = 0;
  /// Collective over the ranks of the group; bounded by `seconds`.
  virtual CudaGroup join(const std::string& id, int rank, int size, double seconds) = 0;
  /// Around calls that belong together.
  virtual void begin_calls() = 0;
  virtual void end_calls() = 0;
  virtual void all_reduce(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                          Combiner combiner, CudaStream stream) = 0;
  virtual void reduce_scatter(CudaGroup group, const void* in, void* out, int64_t count,
                              DType dtype, Combiner combiner, CudaStream stream) = 0;
  virtual void all_gather(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                          CudaStream stream) = 0;
  /// The error that a call of the group ran into since, or empty.
  virtual std::string trouble(CudaGroup group) = 0;
  /// Ends pending calls without waiting for peers, and the group: it is not used again.
  virtual void abort(CudaGroup group) noexcept = 0;
};

}  // namespace tessera
