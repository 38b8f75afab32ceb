#include "gpu/rules/cudnn/handles.h"

#include "gpu/rules/cudnn/living.h"
#include "gpu/rules/cudnn/status.h"

namespace tessera::test::rules::cudnn {

namespace {

struct Handle {
  int gpu = 0;
  CUstream stream = nullptr;
};

Living<cudnnHandle_t, Handle>& handles() {
  static Living<cudnnHandle_t, Handle> all;
  return all;
}

}  // namespace

int gpu_of(cudnnHandle_t handle) {
  const Handle* found = handles().find(handle);
  return found == nullptr ? -1 : found->gpu;
}

/// It allocates memory of the GPU.
cudnnStatus_t create_handle(cudnnHandle_t* handle) {
  const Entered in;
  if (in.result != CUDA_SUCCESS)
    return told(CUDNN_STATUS_NOT_INITIALIZED, "there is no current context");
  if (check_unsafe(*in.m) != CUDA_SUCCESS)
    return told(CUDNN_STATUS_NOT_INITIALIZED, "a handle is made in a capture");
  *handle = handles().make({in.context->gpu, nullptr});
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream) {
  const Entered in;
  Handle* found = handles().find(handle);
  if (found == nullptr) return told(CUDNN_STATUS_BAD_PARAM, "it is no handle");
  if (in.result != CUDA_SUCCESS) return told(CUDNN_STATUS_EXECUTION_FAILED, "no context");
  const auto given = reinterpret_cast<CUstream>(stream);
  const EmulatorState::Stream* there = find_stream(*in.m, given);
  if (there == nullptr) return told(CUDNN_STATUS_BAD_PARAM, "it is no stream");
  if (there->gpu != found->gpu)
    return told(CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH, "the stream is of another GPU");
  found->stream = given;
  return CUDNN_STATUS_SUCCESS;
}

OnHandle::OnHandle(cudnnHandle_t handle) {
  const Handle* found = handles().find(handle);
  if (found == nullptr) {
    status = told(CUDNN_STATUS_BAD_PARAM, "it is no handle");
  } else if (result != CUDA_SUCCESS) {
    status = told(CUDNN_STATUS_EXECUTION_FAILED, "there is no context, or it is broken");
  } else if (context->gpu != found->gpu) {
    status = told(CUDNN_STATUS_BAD_PARAM, "the handle is of another GPU");
  }
}

OnStream::OnStream(cudnnHandle_t handle) : OnHandle(handle) {
  if (status != CUDNN_STATUS_SUCCESS) return;
  const CUstream given = handles().find(handle)->stream;
  EmulatorState::Stream* there = find_stream(*m, given);
  if (there == nullptr) {
    status = told(CUDNN_STATUS_BAD_PARAM, "the handle's stream was destroyed");
  } else if (check_capture(*m, given, *there) != CUDA_SUCCESS) {
    status = told(CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER, "the capture was invalidated");
  }
  stream = reinterpret_cast<CudaStream>(there);
}

}  // namespace tessera::test::rules::cudnn
