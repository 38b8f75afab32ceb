// What a generated kernel is given: the words of its argument struct, and the memory they name.
#pragma once

#include <memory>

#include "gpu/host_kernels.h"
#include "kernels/cuda/fault.h"
#include "kernels/cuda/generate.h"

namespace tessera::test {

struct GivenKernel {
  GivenKernel(const cuda::Source& source, const KernelArgs& args);
  std::vector<uint64_t> words;
  KernelMemory memory;
  std::unique_ptr<device::Fault> fault = std::make_unique<device::Fault>();  ///< what it found
};

}  // namespace tessera::test
