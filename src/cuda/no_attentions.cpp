#include "base/fail.h"
#include "cuda/attentions.h"

namespace tessera::cuda {

struct Attentions::Library {};
struct Attentions::Attention {};

Attentions::Attentions() = default;
Attentions::~Attentions() = default;
std::string Attentions::why_not() {
  return "this build has no cuDNN: cudnn.h of version 9 was not found";
}
CudaAttention Attentions::prepare(const CudaAttend&, int, int, int64_t, std::string&) {
  return nullptr;
}
void Attentions::run(CudaAttention, const CudaAttendOperands&, void*, CudaStream) {
  fail(ErrorKind::unsupported, "{}", why_not());
}
void Attentions::release(CudaAttention) {}

}  // namespace tessera::cuda
