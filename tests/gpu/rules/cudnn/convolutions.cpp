// Descriptors are read back into the convolution that they mean. The heuristics' first algorithms
// round what must not be rounded, add in no fixed order or need more memory than there is: a caller
// that takes the first one fails.
#include "gpu/rules/cudnn/convolutions.h"

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "gpu/rules/cudnn/handles.h"
#include "gpu/rules/cudnn/living.h"
#include "gpu/rules/cudnn/operations.h"
#include "gpu/rules/cudnn/status.h"

namespace tessera::test::rules::cudnn {

namespace {

struct Tensor {
  cudnnTensorFormat_t format{};
  cudnnDataType_t type{};
  int n = 0, c = 0, h = 0, w = 0;  ///< of a filter: outputs, inputs of a group, window
};
struct How {
  int pad[2]{}, stride[2]{}, dilation[2]{}, groups = 1;
  cudnnDataType_t type{};
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
  bool is_set = false;
};

struct Descriptors {
  Living<cudnnTensorDescriptor_t, Tensor> tensors;
  Living<cudnnFilterDescriptor_t, Tensor> filters;
  Living<cudnnConvolutionDescriptor_t, How> hows;
};
Descriptors& all() {
  static Descriptors made;
  return made;
}

constexpr int64_t kMostElements = std::numeric_limits<int>::max();
constexpr uintptr_t kTensorCoreAlignment = 16;

cudnnStatus_t bad(const std::string& why) { return told(CUDNN_STATUS_BAD_PARAM, why); }

cudnnStatus_t make_tensor(cudnnTensorDescriptor_t* made) {
  *made = all().tensors.make({});
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t make_filter(cudnnFilterDescriptor_t* made) {
  *made = all().filters.make({});
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t make_how(cudnnConvolutionDescriptor_t* made) {
  *made = all().hows.make({});
  return CUDNN_STATUS_SUCCESS;
}
template <class Handle, class T>
cudnnStatus_t drop(Living<Handle, T>& living, Handle handle) {
  return handle == nullptr || living.drop(handle) ? CUDNN_STATUS_SUCCESS
                                                  : bad("it was destroyed before");
}
cudnnStatus_t drop_tensor(cudnnTensorDescriptor_t d) { return drop(all().tensors, d); }
cudnnStatus_t drop_filter(cudnnFilterDescriptor_t d) { return drop(all().filters, d); }
cudnnStatus_t drop_how(cudnnConvolutionDescriptor_t d) { return drop(all().hows, d); }

cudnnStatus_t set(Tensor* d, const Tensor& to) {
  if (d == nullptr) return bad("there is no descriptor");
  if (to.format != CUDNN_TENSOR_NCHW && to.format != CUDNN_TENSOR_NHWC) return bad("the format");
  if (to.n <= 0 || to.c <= 0 || to.h <= 0 || to.w <= 0) return bad("a dim is empty");
  if (bytes_of(to.type) == 0) return bad("the type");
  *d = to;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t set_tensor(cudnnTensorDescriptor_t d, cudnnTensorFormat_t format,
                         cudnnDataType_t type, int n, int c, int h, int w) {
  if (int64_t{1} * n * c > kMostElements / std::max<int64_t>(int64_t{1} * h * w, 1))
    return told(CUDNN_STATUS_NOT_SUPPORTED, "more than 2^31 - 1 elements");
  return set(all().tensors.find(d), {format, type, n, c, h, w});
}
cudnnStatus_t set_filter(cudnnFilterDescriptor_t d, cudnnDataType_t type,
                         cudnnTensorFormat_t format, int n, int c, int h, int w) {
  return set(all().filters.find(d), {format, type, n, c, h, w});
}
cudnnStatus_t set_how(cudnnConvolutionDescriptor_t d, int pad_h, int pad_w, int stride_h,
                      int stride_w, int dilation_h, int dilation_w, cudnnConvolutionMode_t mode,
                      cudnnDataType_t type) {
  How* how = all().hows.find(d);
  if (how == nullptr) return bad("there is no descriptor");
  if (pad_h < 0 || pad_w < 0) return bad("negative padding");
  if (stride_h <= 0 || stride_w <= 0 || dilation_h <= 0 || dilation_w <= 0)
    return bad("a stride or a dilation of 0");
  if (mode != CUDNN_CROSS_CORRELATION && mode != CUDNN_CONVOLUTION) return bad("the mode");
  if (mode != CUDNN_CROSS_CORRELATION) return told(CUDNN_STATUS_NOT_SUPPORTED, "nobody asks");
  *how = {{pad_h, pad_w},
          {stride_h, stride_w},
          {dilation_h, dilation_w},
          1,
          type,
          CUDNN_DEFAULT_MATH,
          true};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t set_groups(cudnnConvolutionDescriptor_t d, int groups) {
  How* how = all().hows.find(d);
  if (how == nullptr || groups <= 0) return bad("no groups");
  how->groups = groups;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t set_math(cudnnConvolutionDescriptor_t d, cudnnMathType_t math) {
  How* how = all().hows.find(d);
  if (how == nullptr || math < CUDNN_DEFAULT_MATH || math > CUDNN_FMA_MATH) return bad("no math");
  how->math = math;
  return CUDNN_STATUS_SUCCESS;
}

struct Convolution {
  const Tensor *x = nullptr, *filter = nullptr, *y = nullptr;
  const How* how = nullptr;
};

Convolution convolution_of(cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t filter,
                           cudnnConvolutionDescriptor_t how, cudnnTensorDescriptor_t y) {
  Descriptors& d = all();
  return {d.tensors.find(x), d.filters.find(filter), d.tensors.find(y), d.hows.find(how)};
}

/// `result` as in CudaConv.
cudnnStatus_t check(const Convolution& c) {
  if (c.x == nullptr || c.filter == nullptr || c.y == nullptr || c.how == nullptr)
    return bad("a descriptor is missing or was destroyed");
  if (c.x->n == 0 || c.filter->n == 0 || c.y->n == 0 || !c.how->is_set)
    return bad("a descriptor was not set");
  if (c.x->type != c.filter->type || c.x->type != c.y->type) return bad("other types");
  if (c.x->format != c.filter->format || c.x->format != c.y->format)
    return told(CUDNN_STATUS_NOT_SUPPORTED, "other formats");
  if (c.how->type != CUDNN_DATA_FLOAT)
    return told(CUDNN_STATUS_NOT_SUPPORTED, "sums of another type than float32");
  if (c.filter->c * c.how->groups != c.x->c || c.filter->n % c.how->groups != 0 ||
      c.filter->n != c.y->c || c.x->n != c.y->n)
    return bad("channels or images that do not fit");
  const int in[2] = {c.x->h, c.x->w}, window[2] = {c.filter->h, c.filter->w},
            out[2] = {c.y->h, c.y->w};
  for (int i = 0; i < 2; ++i) {
    const int seen = (window[i] - 1) * c.how->dilation[i] + 1, all = in[i] + 2 * c.how->pad[i];
    if (seen > all) return bad("the window is larger than what it moves over");
    if ((all - seen) / c.how->stride[i] + 1 != out[i])
      return told(CUDNN_STATUS_NOT_SUPPORTED, "y has other spatial sizes");
  }
  return CUDNN_STATUS_SUCCESS;
}

CudaConv meaning(const Convolution& c, int result) {
  CudaConv m;
  m.dtype = c.x->type == CUDNN_DATA_BFLOAT16 ? DType::bfloat16
            : c.x->type == CUDNN_DATA_HALF   ? DType::float16
                                             : DType::float32;
  m.tf32 = m.dtype == DType::float32 && c.how->math != CUDNN_FMA_MATH;
  m.channels_last = c.x->format == CUDNN_TENSOR_NHWC;
  m.result = result;
  m.images = c.x->n;
  m.groups = c.how->groups;
  m.inputs = c.filter->c;
  m.outputs = c.filter->n / c.how->groups;
  const int in[2] = {c.x->h, c.x->w}, window[2] = {c.filter->h, c.filter->w},
            out[2] = {c.y->h, c.y->w};
  for (int i = 0; i < 2; ++i)
    m.dims[i] = {in[i], window[i], out[i], c.how->stride[i], c.how->dilation[i], c.how->pad[i]};
  return m;
}

struct Algorithm {
  int number;
  size_t memory;
  bool is_ordered;
  cudnnStatus_t status;
};
constexpr size_t kTooMuch = size_t{1} << 40, kLittle = 4096;
using Algorithms = std::vector<Algorithm>;

template <class Perf>
struct Of;
template <>
struct Of<cudnnConvolutionFwdAlgoPerf_t> {
  static Algorithms algorithms() {
    return {
        {CUDNN_CONVOLUTION_FWD_ALGO_FFT, 0, true, CUDNN_STATUS_NOT_SUPPORTED},
        {CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED, kTooMuch, true, CUDNN_STATUS_SUCCESS},
        {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM, kLittle, true, CUDNN_STATUS_SUCCESS}};
  }
};
template <>
struct Of<cudnnConvolutionBwdDataAlgoPerf_t> {
  static Algorithms algorithms() {
    return {
        {CUDNN_CONVOLUTION_BWD_DATA_ALGO_0, 0, false, CUDNN_STATUS_SUCCESS},
        {CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED, kTooMuch, true, CUDNN_STATUS_SUCCESS},
        {CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, kLittle, true, CUDNN_STATUS_SUCCESS}};
  }
};
template <>
struct Of<cudnnConvolutionBwdFilterAlgoPerf_t> {
  static Algorithms algorithms() {
    return {{CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3, kLittle, false, CUDNN_STATUS_SUCCESS},
            {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, 0, false, CUDNN_STATUS_SUCCESS},
            {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, kLittle, true, CUDNN_STATUS_SUCCESS}};
  }
};

/// Each algorithm with tensor cores first, which round float32.
template <class Perf>
cudnnStatus_t suggest(cudnnHandle_t handle, const Convolution& c, int most, int* count,
                      Perf* found) {
  *count = 0;
  const OnHandle in(handle);
  if (in.status != CUDNN_STATUS_SUCCESS) return in.status;
  if (most < 1) return bad("no algorithm is asked for");
  if (const cudnnStatus_t status = check(c); status != CUDNN_STATUS_SUCCESS) return status;
  for (const Algorithm& a : Of<Perf>::algorithms()) {
    for (const cudnnMathType_t math :
         {CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION, CUDNN_TENSOR_OP_MATH, CUDNN_FMA_MATH}) {
      if (math == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION && c.x->type != CUDNN_DATA_FLOAT) continue;
      if (*count == most) return CUDNN_STATUS_SUCCESS;
      Perf& p = found[(*count)++];
      p = {};
      p.algo = static_cast<decltype(p.algo)>(a.number);
      p.status = a.status;
      p.time = static_cast<float>(*count);
      p.memory = a.memory;
      p.determinism = a.is_ordered ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC;
      p.mathType = math;
    }
  }
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t suggest_forward(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                              cudnnFilterDescriptor_t filter, cudnnConvolutionDescriptor_t how,
                              cudnnTensorDescriptor_t y, int most, int* count,
                              cudnnConvolutionFwdAlgoPerf_t* found) {
  return suggest(handle, convolution_of(x, filter, how, y), most, count, found);
}
cudnnStatus_t suggest_data(cudnnHandle_t handle, cudnnFilterDescriptor_t filter,
                           cudnnTensorDescriptor_t y, cudnnConvolutionDescriptor_t how,
                           cudnnTensorDescriptor_t x, int most, int* count,
                           cudnnConvolutionBwdDataAlgoPerf_t* found) {
  return suggest(handle, convolution_of(x, filter, how, y), most, count, found);
}
cudnnStatus_t suggest_filter(cudnnHandle_t handle, cudnnTensorDescriptor_t x,
                             cudnnTensorDescriptor_t y, cudnnConvolutionDescriptor_t how,
                             cudnnFilterDescriptor_t filter, int most, int* count,
                             cudnnConvolutionBwdFilterAlgoPerf_t* found) {
  return suggest(handle, convolution_of(x, filter, how, y), most, count, found);
}

struct Run {
  const void *alpha, *beta, *first, *second;
  void *result, *workspace;
  size_t bytes;
};

template <class Perf>
cudnnStatus_t run(cudnnHandle_t handle, const Convolution& c, int result, int number,
                  const Run& r) {
  const OnStream in(handle);
  if (in.status != CUDNN_STATUS_SUCCESS) return in.status;
  if (const cudnnStatus_t status = check(c); status != CUDNN_STATUS_SUCCESS) return status;
  if (r.alpha == nullptr || r.beta == nullptr || r.first == nullptr || r.second == nullptr ||
      r.result == nullptr)
    return bad("an operand is missing");
  if (*static_cast<const float*>(r.alpha) != 1 || *static_cast<const float*>(r.beta) != 0)
    return told(CUDNN_STATUS_NOT_SUPPORTED, "nobody asks for it");
  const Algorithms algorithms = Of<Perf>::algorithms();
  const auto found = std::find_if(algorithms.begin(), algorithms.end(),
                                  [&](const Algorithm& a) { return a.number == number; });
  if (found == algorithms.end() || found->status != CUDNN_STATUS_SUCCESS)
    return told(CUDNN_STATUS_NOT_SUPPORTED, "no such algorithm");
  if (r.bytes < found->memory || (found->memory > 0 && r.workspace == nullptr))
    return bad("the workspace is smaller than the algorithm needs");
  if (!found->is_ordered) {
    const std::lock_guard lock(in.m->state.mutex);
    in.m->state.misuse("a convolution of cuDNN that adds in no fixed order");
  }
  if (c.x->type != CUDNN_DATA_FLOAT && c.how->math != CUDNN_FMA_MATH) {
    for (const void* at : {r.first, r.second, static_cast<const void*>(r.result),
                           static_cast<const void*>(r.workspace)}) {
      if (reinterpret_cast<uintptr_t>(at) % kTensorCoreAlignment != 0)
        return told(CUDNN_STATUS_NOT_SUPPORTED, "tensor cores need multiples of 16 bytes");
    }
  }
  EmulatedConvolution& emulated = in.m->gpu.convolutions();
  const CudaConvolution prepared = emulated.prepare(meaning(c, result));
  emulated.run(prepared, r.first, r.second, r.result, r.workspace, in.stream);
  emulated.release(prepared);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t forward(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t x,
                      const void* px, cudnnFilterDescriptor_t filter, const void* pf,
                      cudnnConvolutionDescriptor_t how, cudnnConvolutionFwdAlgo_t algorithm,
                      void* workspace, size_t bytes, const void* beta, cudnnTensorDescriptor_t y,
                      void* py) {
  return run<cudnnConvolutionFwdAlgoPerf_t>(handle, convolution_of(x, filter, how, y), 0, algorithm,
                                            {alpha, beta, px, pf, py, workspace, bytes});
}
cudnnStatus_t backward_data(cudnnHandle_t handle, const void* alpha, cudnnFilterDescriptor_t filter,
                            const void* pf, cudnnTensorDescriptor_t y, const void* py,
                            cudnnConvolutionDescriptor_t how,
                            cudnnConvolutionBwdDataAlgo_t algorithm, void* workspace, size_t bytes,
                            const void* beta, cudnnTensorDescriptor_t x, void* px) {
  return run<cudnnConvolutionBwdDataAlgoPerf_t>(handle, convolution_of(x, filter, how, y), 1,
                                                algorithm,
                                                {alpha, beta, py, pf, px, workspace, bytes});
}
cudnnStatus_t backward_filter(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t x,
                              const void* px, cudnnTensorDescriptor_t y, const void* py,
                              cudnnConvolutionDescriptor_t how,
                              cudnnConvolutionBwdFilterAlgo_t algorithm, void* workspace,
                              size_t bytes, const void* beta, cudnnFilterDescriptor_t filter,
                              void* pf) {
  return run<cudnnConvolutionBwdFilterAlgoPerf_t>(handle, convolution_of(x, filter, how, y), 2,
                                                  algorithm,
                                                  {alpha, beta, px, py, pf, workspace, bytes});
}

}  // namespace

void* find_convolution(const std::string& symbol) {
#define TESSERA_FUNCTION(name, function) \
  { #name, reinterpret_cast < void*>(static_cast <decltype(&::name)>(&function)) }
  static const std::map<std::string, void*> functions = {
      TESSERA_FUNCTION(cudnnCreateTensorDescriptor, make_tensor),
      TESSERA_FUNCTION(cudnnDestroyTensorDescriptor, drop_tensor),
      TESSERA_FUNCTION(cudnnSetTensor4dDescriptor, set_tensor),
      TESSERA_FUNCTION(cudnnCreateFilterDescriptor, make_filter),
      TESSERA_FUNCTION(cudnnDestroyFilterDescriptor, drop_filter),
      TESSERA_FUNCTION(cudnnSetFilter4dDescriptor, set_filter),
      TESSERA_FUNCTION(cudnnCreateConvolutionDescriptor, make_how),
      TESSERA_FUNCTION(cudnnDestroyConvolutionDescriptor, drop_how),
      TESSERA_FUNCTION(cudnnSetConvolution2dDescriptor, set_how),
      TESSERA_FUNCTION(cudnnSetConvolutionGroupCount, set_groups),
      TESSERA_FUNCTION(cudnnSetConvolutionMathType, set_math),
      TESSERA_FUNCTION(cudnnGetConvolutionForwardAlgorithm_v7, suggest_forward),
      TESSERA_FUNCTION(cudnnGetConvolutionBackwardDataAlgorithm_v7, suggest_data),
      TESSERA_FUNCTION(cudnnGetConvolutionBackwardFilterAlgorithm_v7, suggest_filter),
      TESSERA_FUNCTION(cudnnConvolutionForward, forward),
      TESSERA_FUNCTION(cudnnConvolutionBackwardData, backward_data),
      TESSERA_FUNCTION(cudnnConvolutionBackwardFilter, backward_filter)};
#undef TESSERA_FUNCTION
  const auto found = functions.find(symbol);
  return found == functions.end() ? nullptr : found->second;
}

}  // namespace tessera::test::rules::cudnn
