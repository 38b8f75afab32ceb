// One kernel over many tensors.
#pragma once

#include "kernels/cuda/generate.h"

namespace tessera::cuda {

/// True for a pointwise step that group_tensors() made.
bool is_group(const Step& step);
Source generate_group(const KernelArgs& args);

}  // namespace tessera::cuda
