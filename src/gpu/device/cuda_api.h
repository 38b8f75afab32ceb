// Everything that the CUDA device asks of CUDA: an interface each for the driver's contexts,
// memory, streams, kernels and graphs, and one for every library. libtessera_cuda.so implements
// them; the tests implement them on the host and check every wait. No CUDA header is needed to
// include this.
//
// A call that fails throws Error(device) that names the call of CUDA, its error and where it was
// made.
#pragma once

#include "gpu/device/cuda_blas.h"
#include "gpu/device/cuda_dnn.h"
#include "gpu/device/cuda_driver.h"
#include "gpu/device/cuda_nccl.h"

namespace tessera {

/// Ranges of the calling thread, one in the other, that a profiler shows.
class CudaProfilerApi {
 public:
  virtual ~CudaProfilerApi() = default;
  virtual void push_range(const char* text) = 0;
  virtual void pop_range() = 0;
};

class CudaApi {
 public:
  virtual ~CudaApi() = default;
  virtual CudaContextApi& contexts() = 0;
  virtual CudaMemoryApi& memory() = 0;
  virtual CudaStreamApi& streams() = 0;
  virtual CudaKernelApi& kernels() = 0;
  virtual CudaGraphApi& graphs() = 0;
  virtual CudaBlasApi& blas() = 0;

  /// Libraries that may be absent, opened when they are first asked for: null, and `why`, where one
  /// is; else `why` is empty.
  virtual CudaConvolutionApi* convolution(std::string& why) = 0;
  virtual CudaAttentionApi* attention(std::string& why) = 0;
  virtual CudaNcclApi* nccl(std::string& why) = 0;
  /// Null unless a profiler is attached, since before the first call of this.
  virtual CudaProfilerApi* profiler() = 0;
};

/// What there is of CUDA on this machine, without a GPU being touched.
struct CudaSupport {
  std::string toolkit;  ///< "13.0" that libtessera_cuda.so was built with; empty if there is none
  std::string driver;   ///< "13.0" that the driver can do; empty if there is none
  int gpus = 0;
  std::string why_not;  ///< empty if a GPU can be used
};
CudaSupport cuda_support();

/// CUDA in this process: loads libtessera_cuda.so at the first call. Throws unsupported with
/// the reason (no such build, no driver, driver too old, no GPU).
CudaApi& cuda_api();
/// For tests: what cuda_api() returns from now on; null undoes it.
void replace_cuda_api(CudaApi* api);

/// What libtessera_cuda.so exports as "tessera_cuda_open": CUDA, or null and why.
using CudaOpen = CudaApi* (*)(std::string& why);

}  // namespace tessera
