// A stand-in for cuDNN that enforces its rules (cudnn/): descriptors and their attributes, what
// finalizing checks, engines and plans, executions with what their tensors need, convolutions.
// Graphs are computed operation by operation.
#pragma once

#include <string>

namespace tessera::test::rules {

/// The function of cuDNN of that name; null if it has none. "": not null.
void* find_cudnn(const std::string& symbol);

}  // namespace tessera::test::rules
