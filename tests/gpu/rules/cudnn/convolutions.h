// cuDNN's calls for convolutions, which the emulated GPU computes.
#pragma once

#include <string>

namespace tessera::test::rules::cudnn {

/// The function of that name; null if it is none for convolutions.
void* find_convolution(const std::string& symbol);

}  // namespace tessera::test::rules::cudnn
