// Handles: of the GPU that was current, with a stream of that GPU.
#pragma once

#include <cudnn.h>

#include "gpu/rules/driver.h"

namespace tessera::test::rules::cudnn {

cudnnStatus_t create_handle(cudnnHandle_t* handle);
cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream);

/// What a call with a handle begins with. `status` is an error if the handle is none or of another
/// GPU than the thread's context.
struct OnHandle : Entered {
  explicit OnHandle(cudnnHandle_t handle);
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
};

/// What a call that enqueues work begins with. `status` is an error, too, if the handle's stream
/// was destroyed, or its capture invalidated.
struct OnStream : OnHandle {
  explicit OnStream(cudnnHandle_t handle);
  CudaStream stream = nullptr;
};

/// The GPU of a handle; -1 if it is none.
int gpu_of(cudnnHandle_t handle);

}  // namespace tessera::test::rules::cudnn
