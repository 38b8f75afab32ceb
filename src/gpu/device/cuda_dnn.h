// What the device asks of cuDNN: convolutions and attention.
#pragma once

#include "gpu/device/cuda_types.h"

namespace tessera {

/// A convolution without flipping, over two spatial dims: y from x and filter, x (its gradient)
/// from y and filter, or the filter from x and y. All are dense: x [images, groups * inputs, in,
/// in], y [images, groups * outputs, out, out], filter [groups * outputs, inputs, window, window],
/// or with the channels (of the filter: the inputs) behind the spatial dims. Sums are float32.
struct CudaConv {
  DType dtype = DType::float32;
  bool tf32 = false, channels_last = false;
  int result = 0;  ///< 0: y, 1: x, 2: the filter
  int64_t images = 1, groups = 1, inputs = 1, outputs = 1;
  struct Dim {
    int64_t in = 1, window = 1, out = 1, stride = 1, dilation = 1, pad = 0;
  } dims[2];
};

class CudaConvolutionApi {
 public:
  virtual ~CudaConvolutionApi() = default;
  /// Null where the library has none with a fixed order of sums that needs no more memory than
  /// CudaBlasApi::workspace(), which run() may use.
  virtual CudaConvolution prepare(const CudaConv& conv) = 0;
  virtual void run(CudaConvolution convolution, const void* first, const void* second, void* result,
                   void* workspace, CudaStream stream) = 0;
  virtual void release(CudaConvolution convolution) = 0;
};

/// softmax(scale q k) v over the keys of each head, bfloat16 or float16, or its gradients. Elements
/// lie by strides, those of a row of `width` next to each other. Sums are float32. Forward writes
/// out and log_sum, float32 [batch, heads, queries]: the natural logarithm of the sum of exp(scale
/// q k). Backward reads both.
struct CudaAttend {
  DType dtype = DType::bfloat16;
  bool backward = false;
  bool causal = false;  ///< query i sees keys 0 to i
  double scale = 1;
  /// key_heads divides heads; as many heads as it goes in, one behind the other, share a key head.
  int64_t batch = 1, heads = 1, key_heads = 1, queries = 1, keys = 1, width = 1;
  struct Strides {
    int64_t batch = 0, head = 0, position = 0;
  } query, key, value, out, log_sum, grad, query_grad, key_grad, value_grad;
};

/// Where its operands begin, at multiples of 16 bytes. Forward leaves the gradients out.
struct CudaAttendOperands {
  const void *query = nullptr, *key = nullptr, *value = nullptr;
  void *out = nullptr, *log_sum = nullptr;
  const void* grad = nullptr;  ///< of out
  void *query_grad = nullptr, *key_grad = nullptr, *value_grad = nullptr;
};

class CudaAttentionApi {
 public:
  virtual ~CudaAttentionApi() = default;
  /// Null where the library has none with a fixed order of sums that needs at most `workspace`
  /// bytes, for the whole batch or a few of it at a time: `why` says what is amiss. The first with
  /// a description takes seconds: the library compiles it.
  virtual CudaAttention prepare(const CudaAttend& attend, int64_t workspace, std::string& why) = 0;
  /// `workspace`: as many bytes as prepare() was given, at a multiple of 256.
  virtual void run(CudaAttention attention, const CudaAttendOperands& operands, void* workspace,
                   CudaStream stream) = 0;
  virtual void release(CudaAttention attention) = 0;
};

}  // namespace tessera
