// Uses cuDNN's convolution calls instead of its graphs: their algorithms state their workspace and
// whether they are deterministic. There is one handle per GPU. A lock covers setting its stream and
// the call after it, because thread ranks may share a GPU.
#include "gpu/library/cudnn_convolution.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "gpu/library/cudnn.h"
#include "gpu/library/driver.h"

namespace tessera::cuda {

struct CudnnConvolution::Library : Cudnn {};

#define CHECKED(name) TESSERA_DNN(lib, name)

struct CudnnConvolution::Convolution {
  cudnnHandle_t handle = nullptr;
  cudnnTensorDescriptor_t x = nullptr, y = nullptr;
  cudnnFilterDescriptor_t filter = nullptr;
  cudnnConvolutionDescriptor_t how = nullptr;
  cudnnMathType_t math = CUDNN_FMA_MATH;  ///< for float32 that must not be rounded
  int result = 0, algorithm = -1;
  size_t workspace = 0;
};

CudnnConvolution::CudnnConvolution(int64_t workspace) : workspace_(workspace) {}
CudnnConvolution::~CudnnConvolution() = default;

CudnnConvolution::Library& CudnnConvolution::library() {
  const std::lock_guard lock(mutex_);
  if (!library_) library_ = std::make_unique<Library>();
  return *library_;
}

std::string CudnnConvolution::why_not() { return library().why_not; }

namespace {

constexpr int kMostAlgorithms = 16;  ///< each with tensor cores and without

/// True if x and y have less than 2^31 elements, and so has each dim of the filter.
bool fits(const CudaConv& c) {
  const auto small = [](std::initializer_list<int64_t> sizes) {
    int64_t product = 1;
    for (const int64_t size : sizes) {
      if (size > std::numeric_limits<int>::max() / product) return false;
      product *= size;
    }
    return true;
  };
  const auto &h = c.dims[0], &w = c.dims[1];
  return small({c.images, c.groups, c.inputs, h.in, w.in}) &&
         small({c.images, c.groups, c.outputs, h.out, w.out}) &&
         small({c.inputs, h.window, w.window}) && small({c.groups, c.outputs});
}

template <class Calls, class Made>
void describe(Calls& lib, const CudaConv& c, Made& made) {
  const auto number = [](int64_t n) { return static_cast<int>(n); };
  const cudnnTensorFormat_t format = c.channels_last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
  const cudnnDataType_t type = c.dtype == DType::bfloat16  ? CUDNN_DATA_BFLOAT16
                               : c.dtype == DType::float16 ? CUDNN_DATA_HALF
                                                           : CUDNN_DATA_FLOAT;
  const auto &h = c.dims[0], &w = c.dims[1];
  CHECKED(cudnnCreateTensorDescriptor)(&made.x);
  CHECKED(cudnnCreateTensorDescriptor)(&made.y);
  CHECKED(cudnnCreateFilterDescriptor)(&made.filter);
  CHECKED(cudnnCreateConvolutionDescriptor)(&made.how);
  CHECKED(cudnnSetTensor4dDescriptor)
  (made.x, format, type, number(c.images), number(c.groups * c.inputs), number(h.in), number(w.in));
  CHECKED(cudnnSetTensor4dDescriptor)
  (made.y, format, type, number(c.images), number(c.groups * c.outputs), number(h.out),
   number(w.out));
  CHECKED(cudnnSetFilter4dDescriptor)
  (made.filter, type, format, number(c.groups * c.outputs), number(c.inputs), number(h.window),
   number(w.window));
  CHECKED(cudnnSetConvolution2dDescriptor)
  (made.how, number(h.pad), number(w.pad), number(h.stride), number(w.stride), number(h.dilation),
   number(w.dilation), CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
  CHECKED(cudnnSetConvolutionGroupCount)(made.how, number(c.groups));
  // The default lets float32 operands be rounded to tf32.
  CHECKED(cudnnSetConvolutionMathType)
  (made.how, c.dtype != DType::float32 ? CUDNN_TENSOR_OP_MATH
             : c.tf32                  ? CUDNN_DEFAULT_MATH
                                       : CUDNN_FMA_MATH);
}

/// Takes the first algorithm that is available, deterministic and needs at most `most` bytes. It
/// may round float32 operands, to tf32, only if that is allowed.
template <class Result, class Find, class Made>
bool choose(Find find, const CudaConv& c, int64_t most, Made& made) {
  std::array<Result, kMostAlgorithms> found{};
  int count = 0;
  if (find(&count, found.data()) != CUDNN_STATUS_SUCCESS) return false;
  for (int k = 0; k < count; ++k) {
    const Result& r = found[static_cast<size_t>(k)];
    if (r.status != CUDNN_STATUS_SUCCESS || r.determinism != CUDNN_DETERMINISTIC ||
        r.memory > static_cast<size_t>(most))
      continue;
    const bool is_wide = c.dtype == DType::float32;
    if (is_wide && (r.mathType == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION ||
                    (r.mathType == CUDNN_TENSOR_OP_MATH && !c.tf32)))
      continue;
    made.algorithm = static_cast<int>(r.algo);
    made.workspace = r.memory;
    if (!is_wide || c.tf32) made.math = r.mathType;
    return true;
  }
  return false;
}

}  // namespace

CudaConvolution CudnnConvolution::prepare(const CudaConv& c) {
  Library& lib = library();
  if (!lib.why_not.empty() || !fits(c)) return nullptr;
  auto made = std::make_unique<Convolution>();
  {
    const std::lock_guard lock(mutex_);
    made->handle = lib.handle(current_gpu());
  }
  made->result = c.result;
  describe(lib, c, *made);
  Convolution& m = *made;
  bool found = false;
  if (c.result == 0) {
    found = choose<cudnnConvolutionFwdAlgoPerf_t>(
        [&](int* count, cudnnConvolutionFwdAlgoPerf_t* to) {
          return lib.cudnnGetConvolutionForwardAlgorithm_v7_(m.handle, m.x, m.filter, m.how, m.y,
                                                             kMostAlgorithms, count, to);
        },
        c, workspace_, m);
  } else if (c.result == 1) {
    found = choose<cudnnConvolutionBwdDataAlgoPerf_t>(
        [&](int* count, cudnnConvolutionBwdDataAlgoPerf_t* to) {
          return lib.cudnnGetConvolutionBackwardDataAlgorithm_v7_(m.handle, m.filter, m.y, m.how,
                                                                  m.x, kMostAlgorithms, count, to);
        },
        c, workspace_, m);
  } else {
    found = choose<cudnnConvolutionBwdFilterAlgoPerf_t>(
        [&](int* count, cudnnConvolutionBwdFilterAlgoPerf_t* to) {
          return lib.cudnnGetConvolutionBackwardFilterAlgorithm_v7_(
              m.handle, m.x, m.y, m.how, m.filter, kMostAlgorithms, count, to);
        },
        c, workspace_, m);
  }
  if (found) CHECKED(cudnnSetConvolutionMathType)(m.how, m.math);
  const CudaConvolution convolution = reinterpret_cast<CudaConvolution>(made.release());
  if (found) return convolution;
  release(convolution);
  return nullptr;
}

void CudnnConvolution::run(CudaConvolution given, const void* first, const void* second,
                           void* result, void* workspace, CudaStream stream) {
  const Convolution& c = *reinterpret_cast<Convolution*>(given);
  Library& lib = library();
  const float one = 1, zero = 0;
  const void *alpha = &one, *beta = &zero;
  const std::lock_guard lock(mutex_);
  CHECKED(cudnnSetStream)(c.handle, reinterpret_cast<cudaStream_t>(stream));
  if (c.result == 0) {
    CHECKED(cudnnConvolutionForward)
    (c.handle, alpha, c.x, first, c.filter, second, c.how,
     static_cast<cudnnConvolutionFwdAlgo_t>(c.algorithm), workspace, c.workspace, beta, c.y,
     result);
  } else if (c.result == 1) {
    CHECKED(cudnnConvolutionBackwardData)
    (c.handle, alpha, c.filter, second, c.y, first, c.how,
     static_cast<cudnnConvolutionBwdDataAlgo_t>(c.algorithm), workspace, c.workspace, beta, c.x,
     result);
  } else {
    CHECKED(cudnnConvolutionBackwardFilter)
    (c.handle, alpha, c.x, first, c.y, second, c.how,
     static_cast<cudnnConvolutionBwdFilterAlgo_t>(c.algorithm), workspace, c.workspace, beta,
     c.filter, result);
  }
}

void CudnnConvolution::release(CudaConvolution given) {
  const std::unique_ptr<Convolution> c(reinterpret_cast<Convolution*>(given));
  Library& lib = library();
  CHECKED(cudnnDestroyTensorDescriptor)(c->x);
  CHECKED(cudnnDestroyTensorDescriptor)(c->y);
  CHECKED(cudnnDestroyFilterDescriptor)(c->filter);
  CHECKED(cudnnDestroyConvolutionDescriptor)(c->how);
}

}  // namespace tessera::cuda
