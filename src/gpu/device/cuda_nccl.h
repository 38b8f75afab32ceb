// What the device needs from NCCL: collectives of a group of ranks with one GPU each.
#pragma once

#include "gpu/device/cuda_types.h"

namespace tessera {

class CudaNcclApi {
 public:
  virtual ~CudaNcclApi() = default;
  /// An id of 128 bytes for a group, made by its rank 0.
  virtual std::string group_id() = 0;
  /// Joins a group. Collective over its ranks; takes at most `seconds`.
  virtual CudaGroup join(const std::string& id, int rank, int size, double seconds) = 0;
  /// Around calls that are launched together.
  virtual void begin_calls() = 0;
  virtual void end_calls() = 0;
  virtual void all_reduce(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                          Combiner combiner, CudaStream stream) = 0;
  virtual void reduce_scatter(CudaGroup group, const void* in, void* out, int64_t count,
                              DType dtype, Combiner combiner, CudaStream stream) = 0;
  virtual void all_gather(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                          CudaStream stream) = 0;
  /// The asynchronous error of the group, or empty.
  virtual std::string trouble(CudaGroup group) = 0;
  /// Ends the group and its pending calls without waiting for peers. The group must not be used
  /// again.
  virtual void abort(CudaGroup group) noexcept = 0;
};

}  // namespace tessera
