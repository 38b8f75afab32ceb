// What a generated kernel is given: the words of its argument struct, and the memory they name.
#pragma once

#include "gpu/host_kernels.h"
#include "kernels/cuda/generate.h"

namespace tessera::test {

struct GivenKernel {
  GivenKernel(const cuda::Source& source, const KernelArgs& args);
  std::vector<uint64_t> words;
  KernelMemory memory;
};

}  // namespace tessera::test
