// Everything that the CUDA device needs from CUDA: one interface each for the driver's contexts,
// memory, streams, kernels and graphs, and one per library. libtessera_cuda.so implements them. The
// tests implement them on the host and check every wait. Including this needs no CUDA header.
//
// A call that fails throws Error(device), which names the CUDA call, its error and its place.
#pragma once

#include "gpu/device/cuda_blas.h"
#include "gpu/device/cuda_dnn.h"
#include "gpu/device/cuda_driver.h"
#include "gpu/device/cuda_nccl.h"

namespace tessera {

/// Nested ranges of the calling thread, for a profiler.
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

  /// Optional libraries, opened on first use. Return null and set `why` if the library is missing;
  /// otherwise `why` is empty.
  virtual CudaConvolutionApi* convolution(std::string& why) = 0;
  virtual CudaAttentionApi* attention(std::string& why) = 0;
  virtual CudaNcclApi* nccl(std::string& why) = 0;
  /// Null unless a profiler was attached before the first call.
  virtual CudaProfilerApi* profiler() = 0;
};

/// What this machine has of CUDA, found without touching a GPU.
struct CudaSupport {
  std::string toolkit;  ///< that libtessera_cuda.so was built with, "13.0"; empty if there is none
  std::string driver;   ///< highest version the driver supports, "13.0"; empty if there is none
  int gpus = 0;
  std::string why_not;  ///< empty if a GPU can be used
};
CudaSupport cuda_support();

/// CUDA in this process. Loads libtessera_cuda.so at the first call. Throws unsupported with the
/// reason (built without CUDA, no driver, driver too old, no GPU).
CudaApi& cuda_api();
/// For tests: replaces the result of cuda_api(); null restores it.
void replace_cuda_api(CudaApi* api);

/// What libtessera_cuda.so exports as "tessera_cuda_open". Returns CUDA, or null and sets `why`.
using CudaOpen = CudaApi* (*)(std::string& why);
/// For tests, "tessera_cuda_open_on": the same on the functions that `find` gives instead of those
/// of libraries (gpu/library/shared_library.h). The caller owns the result.
using CudaOpenOn = CudaApi* (*)(void* (*find)(const char* library, const char* symbol),
                                std::string& why);

}  // namespace tessera
