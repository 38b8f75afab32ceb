#include "gpu/library/driver.h"

#include <algorithm>

#include "kernels/cuda/generate.h"

namespace tessera::cuda {

namespace {

thread_local int used_gpu = 0;

CUdeviceptr address(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }
CUstream stream_of(CudaStream stream) { return reinterpret_cast<CUstream>(stream); }
CUevent event_of(CudaEvent event) { return reinterpret_cast<CUevent>(event); }

}  // namespace

int current_gpu() { return used_gpu; }

/// CHECKED(cuMemAlloc)(arguments) calls the function and checks its result.
#define CHECKED(name) \
  [&](auto... args) { driver_.check(driver_.name##_(args...), #name, __LINE__); }

Driver::Driver() {
#define TESSERA_MEMBER(name) library.get(name##_, TESSERA_TEXT(name));
#include "gpu/library/driver.inc"
#undef TESSERA_MEMBER
}

void Driver::check(CUresult result, const char* call, int line) const {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  cuGetErrorString_(result, &text);
  check_call(false, call, text != nullptr ? text : "unknown error", __FILE__, line);
}

Contexts::Contexts(const Driver& driver) : driver_(driver) {
  CHECKED(cuInit)(0u);
  int count = 0;
  CHECKED(cuDeviceGetCount)(&count);
  for (int c = 0; c < count; ++c) {
    CUdevice device = 0;
    CHECKED(cuDeviceGet)(&device, c);
    char name[128] = {};
    CHECKED(cuDeviceGetName)(name, int(sizeof(name)), device);
    CudaGpu gpu;
    gpu.name = name;
    CHECKED(cuDeviceGetAttribute)
    (&gpu.major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    CHECKED(cuDeviceGetAttribute)
    (&gpu.minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    size_t bytes = 0;
    CHECKED(cuDeviceTotalMem)(&bytes, device);
    gpu.memory = static_cast<int64_t>(bytes);
    CUuuid id{};
    CHECKED(cuDeviceGetUuid)(&id, device);
    for (char byte : id.bytes) gpu.id += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    gpus_.push_back(gpu);
    contexts_.push_back(nullptr);
  }
}

void* Contexts::use(int gpu) {
  CUcontext before = nullptr;
  CHECKED(cuCtxGetCurrent)(&before);
  const std::lock_guard lock(mutex_);
  CUcontext& context = contexts_.at(static_cast<size_t>(gpu));
  if (context == nullptr) {
    CUdevice device = 0;
    CHECKED(cuDeviceGet)(&device, gpu);
    CHECKED(cuDevicePrimaryCtxRetain)(&context, device);
    for (int other = 0; other < static_cast<int>(contexts_.size()); ++other) {
      const CUcontext there = contexts_[static_cast<size_t>(other)];
      if (other == gpu || there == nullptr) continue;
      if (can_reach(gpu, other)) enable_access(context, there);
      if (can_reach(other, gpu)) enable_access(there, context);
    }
  }
  CHECKED(cuCtxSetCurrent)(context);
  used_gpu = gpu;
  return before;
}

void Contexts::restore(void* context) {
  CHECKED(cuCtxSetCurrent)(static_cast<CUcontext>(context));
  const int gpu = context == nullptr ? -1 : gpu_of(static_cast<CUcontext>(context));
  if (gpu >= 0) used_gpu = gpu;
}

int Contexts::gpu_of(CUcontext context) {
  const std::lock_guard lock(mutex_);
  const auto gpu = std::find(contexts_.begin(), contexts_.end(), context);
  return gpu == contexts_.end() ? -1 : static_cast<int>(gpu - contexts_.begin());
}

bool Contexts::can_reach(int gpu, int other) const {
  int reaches = 0;
  CUdevice device = 0, peer = 0;
  CHECKED(cuDeviceGet)(&device, gpu);
  CHECKED(cuDeviceGet)(&peer, other);
  CHECKED(cuDeviceCanAccessPeer)(&reaches, device, peer);
  return reaches != 0;
}
bool Contexts::reaches(int gpu, int other) { return gpu == other || can_reach(gpu, other); }

/// Contexts are per process, so the host program or a library may already have enabled it.
void Contexts::enable_access(CUcontext from, CUcontext to) const {
  CHECKED(cuCtxSetCurrent)(from);
  const CUresult result = driver_.cuCtxEnablePeerAccess_(to, 0u);
  if (result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
    driver_.check(result, "cuCtxEnablePeerAccess", __LINE__);
}

int64_t Memory::free_memory() {
  size_t free = 0, total = 0;
  CHECKED(cuMemGetInfo)(&free, &total);
  return static_cast<int64_t>(free);
}

void* Memory::allocate(int64_t bytes) {
  CUdeviceptr memory = 0;
  CHECKED(cuMemAlloc)(&memory, static_cast<size_t>(bytes));
  return reinterpret_cast<void*>(memory);
}
void Memory::release(void* memory) { CHECKED(cuMemFree)(address(memory)); }

int Memory::gpu_of(const void* memory) {
  CUmemorytype type{};
  int gpu = -1;
  const auto get = [&](void* to, CUpointer_attribute what) {
    return driver_.cuPointerGetAttribute_(to, what, address(memory)) == CUDA_SUCCESS;
  };
  const bool known = get(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) &&
                     get(&gpu, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
  return known && type == CU_MEMORYTYPE_DEVICE ? gpu : -1;
}

void* Memory::allocate_host(int64_t bytes) {
  void* memory = nullptr;
  CHECKED(cuMemHostAlloc)(&memory, static_cast<size_t>(bytes), unsigned{CU_MEMHOSTALLOC_PORTABLE});
  return memory;
}
void Memory::release_host(void* memory) { CHECKED(cuMemFreeHost)(memory); }

void Memory::to_device(void* to, const void* host, int64_t bytes, CudaStream stream) {
  CHECKED(cuMemcpyHtoDAsync)(address(to), host, static_cast<size_t>(bytes), stream_of(stream));
}
void Memory::to_host(void* host, const void* from, int64_t bytes, CudaStream stream) {
  CHECKED(cuMemcpyDtoHAsync)(host, address(from), static_cast<size_t>(bytes), stream_of(stream));
}
void Memory::clear(void* memory, int64_t bytes, CudaStream stream) {
  CHECKED(cuMemsetD8Async)
  (address(memory), static_cast<unsigned char>(0), static_cast<size_t>(bytes), stream_of(stream));
}

CudaStream Streams::make_stream() {
  CUstream stream = nullptr;
  CHECKED(cuStreamCreateWithPriority)(&stream, unsigned{CU_STREAM_NON_BLOCKING}, 0);
  return reinterpret_cast<CudaStream>(stream);
}
CudaStream Streams::make_urgent_stream() {
  int least = 0, greatest = 0;
  CHECKED(cuCtxGetStreamPriorityRange)(&least, &greatest);
  CUstream stream = nullptr;
  CHECKED(cuStreamCreateWithPriority)(&stream, unsigned{CU_STREAM_NON_BLOCKING}, greatest);
  return reinterpret_cast<CudaStream>(stream);
}
void Streams::release(CudaStream stream) { CHECKED(cuStreamDestroy)(stream_of(stream)); }
void Streams::synchronize(CudaStream stream) { CHECKED(cuStreamSynchronize)(stream_of(stream)); }

std::string Streams::why_not_adopted(CudaStream stream) {
  const CUstream given = stream_of(stream);
  if (given == nullptr || given == CU_STREAM_LEGACY || given == CU_STREAM_PER_THREAD) return "";
  CUcontext context = nullptr;
  const CUresult result = driver_.cuStreamGetCtx_(given, &context);
  if (result != CUDA_SUCCESS) {
    const char* text = nullptr;
    driver_.cuGetErrorString_(result, &text);
    return fmt::format("cuStreamGetCtx: {}", text != nullptr ? text : "unknown error");
  }
  const int gpu = contexts_.gpu_of(context);
  if (gpu < 0) return "it is not of a primary context that a Session uses";
  return gpu == current_gpu() ? "" : fmt::format("it is one of device {}", gpu);
}

bool Streams::is_capturing(CudaStream stream) {
  CUstreamCaptureStatus status{};
  CHECKED(cuStreamIsCapturing)(stream_of(stream), &status);
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

CudaEvent Streams::make_event() {
  CUevent event = nullptr;
  CHECKED(cuEventCreate)(&event, unsigned{CU_EVENT_DISABLE_TIMING});
  return reinterpret_cast<CudaEvent>(event);
}
bool Streams::passed(CudaEvent event) {
  const CUresult state = driver_.cuEventQuery_(event_of(event));
  if (state != CUDA_ERROR_NOT_READY) driver_.check(state, "cuEventQuery", __LINE__);
  return state == CUDA_SUCCESS;
}
CudaEvent Streams::make_timer() {
  CUevent event = nullptr;
  CHECKED(cuEventCreate)(&event, unsigned{CU_EVENT_DEFAULT});
  return reinterpret_cast<CudaEvent>(event);
}
double Streams::seconds_between(CudaEvent first, CudaEvent second) {
  float ms = 0;
  CHECKED(cuEventElapsedTime)(&ms, event_of(first), event_of(second));
  return 1e-3 * static_cast<double>(ms);
}
void Streams::release(CudaEvent event) { CHECKED(cuEventDestroy)(event_of(event)); }
void Streams::record(CudaEvent event, CudaStream stream) {
  CHECKED(cuEventRecord)(event_of(event), stream_of(stream));
}
void Streams::wait(CudaStream stream, CudaEvent event) {
  CHECKED(cuStreamWaitEvent)(stream_of(stream), event_of(event), 0u);
}

CudaKernel Kernels::load(const std::string& text) {
  const std::lock_guard lock(mutex_);
  CUfunction& kernel = kernels_[{current_gpu(), text}];
  if (kernel == nullptr) {
    const CudaGpu& gpu = contexts_.current();
    const std::string arch = architecture_for(10 * gpu.major + gpu.minor);
    const bool is_ptx = arch.starts_with("compute_");
    if (is_ptx) {
      why_from_ptx_ = fmt::format("NVRTC {} knows no GPU of compute capability {}.{}",
                                  nvrtc_version(), gpu.major, gpu.minor);
    }
    const std::string code = cache_.code(text, arch);
    CUmodule module = nullptr;
    const CUresult loaded = driver_.cuModuleLoadData_(&module, code.data());
    if (is_ptx && loaded == CUDA_ERROR_UNSUPPORTED_PTX_VERSION) {
      fail(ErrorKind::unsupported,
           "{}, so the driver compiles kernels from its PTX, which is newer than the driver; "
           "install a newer driver, or an NVRTC that knows this GPU",
           why_from_ptx_);
    }
    driver_.check(loaded, "cuModuleLoadData", __LINE__);
    CHECKED(cuModuleGetFunction)(&kernel, module, kName);
  }
  return reinterpret_cast<CudaKernel>(kernel);
}

std::vector<std::string> Kernels::ignored() {
  const std::lock_guard lock(mutex_);
  return {cache_.ignored().begin(), cache_.ignored().end()};
}

std::string Kernels::why_from_ptx() {
  const std::lock_guard lock(mutex_);
  return why_from_ptx_;
}

void Kernels::launch(const CudaLaunch& launch, CudaStream stream) {
  void* args[] = {const_cast<uint64_t*>(launch.words.data())};
  CHECKED(cuLaunchKernel)
  (reinterpret_cast<CUfunction>(launch.kernel), static_cast<unsigned>(launch.blocks), 1u, 1u,
   static_cast<unsigned>(launch.threads), 1u, 1u, 0u, stream_of(stream), static_cast<void**>(args),
   static_cast<void**>(nullptr));
}

void Graphs::begin_capture(CudaStream stream) {
  CHECKED(cuStreamBeginCapture)(stream_of(stream), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

CudaGraph Graphs::end_capture(CudaStream stream) {
  CUgraph graph = nullptr;
  CHECKED(cuStreamEndCapture)(stream_of(stream), &graph);
  CUgraphExec executable = nullptr;
  const CUresult made = driver_.cuGraphInstantiateWithFlags_(&executable, graph, 0ull);
  CHECKED(cuGraphDestroy)(graph);
  driver_.check(made, "cuGraphInstantiateWithFlags", __LINE__);
  return reinterpret_cast<CudaGraph>(executable);
}

void Graphs::launch(CudaGraph graph, CudaStream stream) {
  CHECKED(cuGraphLaunch)(reinterpret_cast<CUgraphExec>(graph), stream_of(stream));
}
void Graphs::release(CudaGraph graph) {
  CHECKED(cuGraphExecDestroy)(reinterpret_cast<CUgraphExec>(graph));
}

}  // namespace tessera::cuda
