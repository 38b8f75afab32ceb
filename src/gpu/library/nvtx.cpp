#include "gpu/library/nvtx.h"

#ifdef TESSERA_HAVE_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace tessera::cuda {

#ifdef TESSERA_HAVE_NVTX

namespace {
nvtxDomainHandle_t handle(void* domain) { return static_cast<nvtxDomainHandle_t>(domain); }
}  // namespace

/// The domain is null if no profiler listens.
Nvtx::Nvtx() : domain_(nvtxDomainCreateA("tessera")) {}

void Nvtx::push_range(const char* text) {
  nvtxEventAttributes_t event = {};
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.messageType = NVTX_MESSAGE_TYPE_ASCII;
  event.message.ascii = text;
  nvtxDomainRangePushEx(handle(domain_), &event);
}

void Nvtx::pop_range() { nvtxDomainRangePop(handle(domain_)); }

#else

Nvtx::Nvtx() = default;
void Nvtx::push_range(const char*) {}
void Nvtx::pop_range() {}

#endif

}  // namespace tessera::cuda

extern "C" {

/// For tests: shows one range. Returns false if no profiler is attached.
bool tessera_cuda_show_range(const char* text) {
  tessera::cuda::Nvtx ranges;
  if (!ranges.has_profiler()) return false;
  ranges.push_range(text);
  ranges.pop_range();
  return true;
}
}
