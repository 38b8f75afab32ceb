#include "base/fail.h"
#include "cuda/groups.h"

namespace tessera::cuda {

struct Groups::Calls {};

Groups::Groups() : why_not_("this build has no NCCL: nccl.h was not found") {}
std::string Groups::id() { fail(ErrorKind::unsupported, "{}", why_not_); }
CudaGroup Groups::join(const std::string&, int, int, double) {
  fail(ErrorKind::unsupported, "{}", why_not_);
}
void Groups::begin() {}
void Groups::end() {}
void Groups::all_reduce(CudaGroup, const void*, void*, int64_t, DType, Combiner, CudaStream) {
  fail(ErrorKind::unsupported, "{}", why_not_);
}
void Groups::reduce_scatter(CudaGroup, const void*, void*, int64_t, DType, Combiner, CudaStream) {
  fail(ErrorKind::unsupported, "{}", why_not_);
}
void Groups::all_gather(CudaGroup, const void*, void*, int64_t, DType, CudaStream) {
  fail(ErrorKind::unsupported, "{}", why_not_);
}
std::string Groups::trouble(CudaGroup) { return why_not_; }
void Groups::abort(CudaGroup) noexcept {}

}  // namespace tessera::cuda
