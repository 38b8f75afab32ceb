// What the device needs from cuDNN: convolutions and attention.
#pragma once

#include "gpu/device/cuda_types.h"

namespace tessera {

/// A convolution (cross-correlation) over two spatial dims: y from x and filter, x (its gradient)
/// from y and filter, or the filter's gradient from x and y. All are dense: x [images, groups *
/// inputs, in, in], y [images, groups * outputs, out, out], filter [groups * outputs, inputs,
/// window, window]; or channels last (in the filter: the inputs). Accumulates in float32.
struct CudaConv {
  DType dtype = DType::float32;
  bool tf32 = false, channels_last = false;
  int result = 0;  ///< computes 0: y, 1: x, 2: the filter
  int64_t images = 1, groups = 1, inputs = 1, outputs = 1;
  struct Dim {
    int64_t in = 1, window = 1, out = 1, stride = 1, dilation = 1, pad = 0;
  } dims[2];
};

class CudaConvolutionApi {
 public:
  virtual ~CudaConvolutionApi() = default;
  /// Returns null if the library has no deterministic algorithm for it that needs at most
  /// CudaBlasApi::workspace() bytes, which run() may use.
  virtual CudaConvolution prepare(const CudaConv& conv) = 0;
  virtual void run(CudaConvolution convolution, const void* first, const void* second, void* result,
                   void* workspace, CudaStream stream) = 0;
  virtual void release(CudaConvolution convolution) = 0;
};

/// softmax(scale q k) v over the keys of each head, in bfloat16 or float16, or its gradients.
/// Operands are strided; the `width` elements of a row are contiguous. Accumulates in float32.
/// Forward writes out and log_sum, float32 [batch, heads, queries]: the natural log of the sum of
/// exp(scale q k). Backward reads both.
struct CudaAttend {
  DType dtype = DType::bfloat16;
  bool backward = false;
  bool causal = false;  ///< query i sees keys 0 to i
  double scale = 1;
  /// heads is a multiple of key_heads. heads / key_heads consecutive heads share a key head (GQA).
  int64_t batch = 1, heads = 1, key_heads = 1, queries = 1, keys = 1, width = 1;
  struct Strides {
    int64_t batch = 0, head = 0, position = 0;
  } query, key, value, out, log_sum, grad, query_grad, key_grad, value_grad;
};

/// Addresses, aligned to 16 bytes. Forward does not use the gradients.
struct CudaAttendOperands {
  const void *query = nullptr, *key = nullptr, *value = nullptr;
  void *out = nullptr, *log_sum = nullptr;
  const void* grad = nullptr;  ///< gradient of out
  void *query_grad = nullptr, *key_grad = nullptr, *value_grad = nullptr;
};

class CudaAttentionApi {
 public:
  virtual ~CudaAttentionApi() = default;
  /// Returns null and sets `why` if the library has no deterministic engine that needs at most
  /// `workspace` bytes for the whole batch or for equal parts of it. The first call for a
  /// description takes seconds: cuDNN compiles it.
  virtual CudaAttention prepare(const CudaAttend& attend, int64_t workspace, std::string& why) = 0;
  /// `workspace`: as many bytes as prepare() was given, aligned to 256.
  virtual void run(CudaAttention attention, const CudaAttendOperands& operands, void* workspace,
                   CudaStream stream) = 0;
  virtual void release(CudaAttention attention) = 0;
};

}  // namespace tessera
