#include "gpu/rules/driver.h"

#include <algorithm>
#include <cstring>

#include "base/fail.h"

namespace tessera::test::rules {

namespace {

Machine*& machine() {
  static Machine* current = nullptr;
  return current;
}
thread_local CUcontext context_of_thread = nullptr;

CUcontext handle(Context& context) { return reinterpret_cast<CUcontext>(&context); }

const std::map<CUresult, const char*>& texts() {
  static const std::map<CUresult, const char*> all = {
      {CUDA_ERROR_INVALID_VALUE, "invalid argument"},
      {CUDA_ERROR_OUT_OF_MEMORY, "out of memory"},
      {CUDA_ERROR_NOT_INITIALIZED, "initialization error"},
      {CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"},
      {CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"},
      {CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"},
      {CUDA_ERROR_INVALID_CONTEXT, "invalid device context"},
      {CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"},
      {CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
       "the provided PTX was compiled with an unsupported toolchain."},
      {CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"},
      {CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"},
      {CUDA_ERROR_NOT_FOUND, "named symbol not found"},
      {CUDA_ERROR_NOT_READY, "device not ready"},
      {CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"},
      {CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"},
      {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"},
      {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
       "operation failed due to a previous error during capture"},
      {CUDA_ERROR_STREAM_CAPTURE_MERGE,
       "operation would result in a merge of separate capture sequences"},
      {CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"},
      {CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"},
      {CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
       "dependency created on uncaptured work in another stream"},
      {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
       "operation would make the legacy stream depend on a capturing blocking stream"},
      {CUDA_ERROR_CAPTURED_EVENT,
       "operation not permitted on an event last recorded in a capturing "
       "stream"},
      {CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
       "attempt to terminate a thread-local capture sequence from another thread"},
      {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
       "system has unsupported display driver / cuda driver combination"}};
  return all;
}

}  // namespace

Machine::Machine(EmulatedCuda& emulated)
    : gpu(emulated), state(emulated.state()), settings(emulated.state().settings) {
  machine() = this;
  for (int g = 0; g < state.gpus; ++g) contexts.push_back({g, {}});
}
Machine::~Machine() {
  if (machine() == this) machine() = nullptr;
}
Machine* Machine::current() { return machine(); }
const LaunchContents*& Machine::launched() {
  thread_local const LaunchContents* contents = nullptr;
  return contents;
}

Context* current_context(Machine& m) {
  for (Context& context : m.contexts) {
    if (handle(context) == context_of_thread) return &context;
  }
  return nullptr;
}

CUresult guarded(const std::function<void()>& call) {
  try {
    call();
  } catch (const IllegalAddress&) {
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  return CUDA_SUCCESS;
}

Entered::Entered(bool needs_context) : m(Machine::current()) {
  if (m == nullptr || !m->is_initialized) {
    result = CUDA_ERROR_NOT_INITIALIZED;
    return;
  }
  context = current_context(*m);
  if (context == nullptr) {
    if (needs_context) result = CUDA_ERROR_INVALID_CONTEXT;
    return;
  }
  const std::lock_guard lock(m->state.mutex);
  const auto broken = m->state.broken.find(context->gpu);
  if (needs_context && broken != m->state.broken.end())
    result = guarded([&] { std::rethrow_exception(broken->second); });
}

CUresult cuInit(unsigned flags) {
  Machine* m = Machine::current();
  if (m == nullptr || m->state.gpus == 0) return CUDA_ERROR_NO_DEVICE;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  m->is_initialized = true;
  return CUDA_SUCCESS;
}

/// The only ones that work before cuInit().
CUresult cuDriverGetVersion(int* version) {
  *version = Machine::current() == nullptr ? 0 : Machine::current()->settings.driver_version;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char** text) {
  const auto found = texts().find(error);
  *text = found == texts().end() ? nullptr : found->second;
  return found == texts().end() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  const Entered in(false);
  if (in.result == CUDA_SUCCESS) *count = in.m->state.gpus;
  return in.result;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  const Entered in(false);
  if (in.result != CUDA_SUCCESS) return in.result;
  if (ordinal < 0 || ordinal >= in.m->state.gpus) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  const Entered in(false);
  if (in.result == CUDA_SUCCESS) std::strncpy(name, "emulated GPU", static_cast<size_t>(length));
  return in.result;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
  const Entered in(false);
  if (in.result != CUDA_SUCCESS) return in.result;
  if (which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) {
    *value = in.m->settings.major;
  } else if (which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) {
    *value = in.m->settings.minor;
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t* bytes, CUdevice) {
  const Entered in(false);
  if (in.result == CUDA_SUCCESS) *bytes = static_cast<size_t>(in.m->state.memory);
  return in.result;
}
CUresult cuDeviceGetUuid(CUuuid* id, CUdevice device) {
  const Entered in(false);
  if (in.result != CUDA_SUCCESS) return in.result;
  std::memset(id->bytes, 0, sizeof(id->bytes));
  id->bytes[0] = static_cast<char>(device);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  const Entered in(false);
  if (in.result != CUDA_SUCCESS) return in.result;
  if (device < 0 || device >= in.m->state.gpus) return CUDA_ERROR_INVALID_DEVICE;
  *context = handle(in.m->contexts[static_cast<size_t>(device)]);
  return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
  const Entered in(false);
  if (in.result != CUDA_SUCCESS) return in.result;
  context_of_thread = context;
  const Context* now = current_context(*in.m);
  EmulatorState::used_gpu() = now == nullptr ? -1 : now->gpu;
  return context != nullptr && now == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  const Entered in(false);
  if (in.result == CUDA_SUCCESS) *context = in.context == nullptr ? nullptr : handle(*in.context);
  return in.result;
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  const Entered in(false);
  if (in.result == CUDA_SUCCESS) *can = device != peer && in.m->settings.has_access;
  return in.result;
}
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  const Entered in;
  if (in.result != CUDA_SUCCESS) return in.result;
  if (flags != 0 || peer == handle(*in.context)) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(in.m->state.mutex);
  return in.context->peers.insert(peer).second ? CUDA_SUCCESS
                                               : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

CUresult cuMemGetInfo(size_t* free, size_t* total) {
  const Entered in;
  if (in.result != CUDA_SUCCESS) return in.result;
  *total = static_cast<size_t>(in.m->state.memory);
  *free = static_cast<size_t>(
      std::max<int64_t>(in.m->gpu.memory().free_memory() - in.m->settings.taken, 0));
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* memory, size_t bytes) {
  const Entered in;
  if (in.result != CUDA_SUCCESS) return in.result;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult unsafe = check_unsafe(*in.m); unsafe != CUDA_SUCCESS) return unsafe;
  size_t free = 0, total = 0;
  cuMemGetInfo(&free, &total);
  if (bytes > free || static_cast<int64_t>(bytes) > in.m->settings.largest_allocation)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *memory = reinterpret_cast<CUdeviceptr>(in.m->gpu.memory().allocate(static_cast<int64_t>(bytes)));
  return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr memory) {
  const Entered in;
  if (in.result != CUDA_SUCCESS) return in.result;
  if (const CUresult unsafe = check_unsafe(*in.m); unsafe != CUDA_SUCCESS) return unsafe;
  {
    const std::lock_guard lock(in.m->state.mutex);
    if (in.m->state.blocks.count(reinterpret_cast<char*>(memory)) == 0)
      return CUDA_ERROR_INVALID_VALUE;
  }
  return guarded([&] { in.m->gpu.memory().release(reinterpret_cast<void*>(memory)); });
}

CUresult cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  const Entered in;
  if (in.result != CUDA_SUCCESS) return in.result;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult unsafe = check_unsafe(*in.m); unsafe != CUDA_SUCCESS) return unsafe;
  if (static_cast<int64_t>(bytes) > in.m->settings.host_memory) return CUDA_ERROR_OUT_OF_MEMORY;
  *memory = in.m->gpu.memory().allocate_host(static_cast<int64_t>(bytes));
  return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void* memory) {
  const Entered in;
  if (in.result != CUDA_SUCCESS) return in.result;
  if (const CUresult unsafe = check_unsafe(*in.m); unsafe != CUDA_SUCCESS) return unsafe;
  {
    const std::lock_guard lock(in.m->state.mutex);
    if (in.m->state.pinned.count(static_cast<char*>(memory)) == 0) return CUDA_ERROR_INVALID_VALUE;
  }
  return guarded([&] { in.m->gpu.memory().release_host(memory); });
}

CUresult cuPointerGetAttribute(void* to, CUpointer_attribute which, CUdeviceptr memory) {
  const Entered in;
  if (in.result != CUDA_SUCCESS) return in.result;
  const int gpu = in.m->gpu.memory().gpu_of(reinterpret_cast<void*>(memory));
  if (gpu < 0) return CUDA_ERROR_INVALID_VALUE;
  if (which == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) {
    *static_cast<CUmemorytype*>(to) = CU_MEMORYTYPE_DEVICE;
  } else {
    *static_cast<int*>(to) = gpu;
  }
  return CUDA_SUCCESS;
}

}  // namespace tessera::test::rules
