// Types shared by the interfaces to CUDA: handles, memory ranges, launches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/dtype.h"

namespace tessera {

using CudaStream = struct CudaStreamTag*;
using CudaEvent = struct CudaEventTag*;
using CudaKernel = struct CudaKernelTag*;
using CudaGraph = struct CudaGraphTag*;
using CudaMatmul = struct CudaMatmulTag*;
using CudaConvolution = struct CudaConvolutionTag*;
using CudaAttention = struct CudaAttentionTag*;
using CudaGroup = struct CudaGroupTag*;

/// Bytes [first, first + bytes) of device memory.
struct CudaRange {
  const void* first = nullptr;
  int64_t bytes = 0;
};

/// A kernel with its arguments. The memory it touches is only used by checks; `atomics`: what
/// several kernels may write at once.
struct CudaLaunch {
  CudaKernel kernel = nullptr;
  int64_t blocks = 0;
  int threads = 0;
  std::vector<uint64_t> words;  ///< the argument struct
  std::vector<CudaRange> reads, writes, atomics;
};

struct CudaGpu {
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int64_t memory = 0;        ///< bytes
  std::string id;            ///< of the GPU itself, independent of its number in this process
};

}  // namespace tessera
