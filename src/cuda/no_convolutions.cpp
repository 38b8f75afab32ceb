#include "base/fail.h"
#include "cuda/convolutions.h"

namespace tessera::cuda {

struct Convolutions::Library {};
struct Convolutions::Convolution {};

Convolutions::Convolutions() = default;
Convolutions::~Convolutions() = default;
std::string Convolutions::why_not() {
  return "this build has no cuDNN: cudnn.h of version 9 was not found";
}
CudaConvolution Convolutions::prepare(const CudaConv&, int, int64_t) { return nullptr; }
void Convolutions::run(CudaConvolution, const void*, const void*, void*, void*, CudaStream) {
  fail(ErrorKind::unsupported, "{}", why_not());
}
void Convolutions::release(CudaConvolution) {}

}  // namespace tessera::cuda
