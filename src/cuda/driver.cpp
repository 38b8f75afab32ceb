#include "cuda/driver.h"

#include "cuda/attentions.h"
#include "cuda/convolutions.h"
#include "cuda/groups.h"
#include "cuda/products.h"
#include "kernels/cuda/generate.h"

namespace tessera::cuda {

namespace {

/// The card that the calling thread uses.
thread_local int current_card = 0;

CUdeviceptr address(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }
CUstream stream_of(CudaStream stream) { return reinterpret_cast<CUstream>(stream); }
CUevent event_of(CudaEvent event) { return reinterpret_cast<CUevent>(event); }

}  // namespace

/// CHECKED(cuMemAlloc)(arguments): calls it and checks the result.
#define CHECKED(name) \
  [&](auto... args) { driver_.check(driver_.name##_(args...), #name, __LINE__); }

Driver::Driver() {
#define TESSERA_MEMBER(name) library.get(name##_, TESSERA_TEXT(name));
#include "cuda/driver.inc"
#undef TESSERA_MEMBER
}

void Driver::check(CUresult result, const char* call, int line) const {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  cuGetErrorString_(result, &text);
  check_call(false, call, text != nullptr ? text : "unknown error", __FILE__, line);
}

DriverApi::DriverApi() {
  CHECKED(cuInit)(0u);
  int count = 0;
  CHECKED(cuDeviceGetCount)(&count);
  for (int c = 0; c < count; ++c) {
    CUdevice device = 0;
    CHECKED(cuDeviceGet)(&device, c);
    char name[128] = {};
    CHECKED(cuDeviceGetName)(name, int(sizeof(name)), device);
    CudaCard card;
    card.name = name;
    CHECKED(cuDeviceGetAttribute)
    (&card.major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    CHECKED(cuDeviceGetAttribute)
    (&card.minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    size_t bytes = 0;
    CHECKED(cuDeviceTotalMem)(&bytes, device);
    card.memory = static_cast<int64_t>(bytes);
    CUuuid id{};
    CHECKED(cuDeviceGetUuid)(&id, device);
    for (char byte : id.bytes) card.id += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    cards_.push_back(card);
    contexts_.push_back(nullptr);
  }
  products_ = std::make_unique<Products>();
  convolutions_ = std::make_unique<Convolutions>();
  attentions_ = std::make_unique<Attentions>();
}

DriverApi::~DriverApi() = default;

void* DriverApi::use(int card) {
  CUcontext before = nullptr;
  CHECKED(cuCtxGetCurrent)(&before);
  const std::lock_guard lock(mutex_);
  CUcontext& context = contexts_.at(static_cast<size_t>(card));
  if (context == nullptr) {
    CUdevice device = 0;
    CHECKED(cuDeviceGet)(&device, card);
    CHECKED(cuDevicePrimaryCtxRetain)(&context, device);
    for (int other = 0; other < static_cast<int>(contexts_.size()); ++other) {
      const CUcontext there = contexts_[static_cast<size_t>(other)];
      if (other == card || there == nullptr) continue;
      if (can_reach(card, other)) enable_access(context, there);
      if (can_reach(other, card)) enable_access(there, context);
    }
  }
  CHECKED(cuCtxSetCurrent)(context);
  current_card = card;
  return before;
}

void DriverApi::restore(void* context) {
  CHECKED(cuCtxSetCurrent)(static_cast<CUcontext>(context));
  const std::lock_guard lock(mutex_);
  const auto card = std::find(contexts_.begin(), contexts_.end(), context);
  if (context != nullptr && card != contexts_.end())
    current_card = static_cast<int>(card - contexts_.begin());
}

bool DriverApi::can_reach(int card, int other) const {
  int reaches = 0;
  CUdevice device = 0, peer = 0;
  CHECKED(cuDeviceGet)(&device, card);
  CHECKED(cuDeviceGet)(&peer, other);
  CHECKED(cuDeviceCanAccessPeer)(&reaches, device, peer);
  return reaches != 0;
}
bool DriverApi::reaches(int card, int other) { return card == other || can_reach(card, other); }

/// The contexts are the process's, so the host program or a library may have enabled it.
void DriverApi::enable_access(CUcontext from, CUcontext to) const {
  CHECKED(cuCtxSetCurrent)(from);
  const CUresult result = driver_.cuCtxEnablePeerAccess_(to, 0u);
  if (result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
    driver_.check(result, "cuCtxEnablePeerAccess", __LINE__);
}

int64_t DriverApi::free_memory() {
  size_t free = 0, total = 0;
  CHECKED(cuMemGetInfo)(&free, &total);
  return static_cast<int64_t>(free);
}

void* DriverApi::allocate(int64_t bytes) {
  CUdeviceptr memory = 0;
  CHECKED(cuMemAlloc)(&memory, static_cast<size_t>(bytes));
  return reinterpret_cast<void*>(memory);
}
void DriverApi::release(void* memory) { CHECKED(cuMemFree)(address(memory)); }

int DriverApi::card_of(const void* memory) {
  CUmemorytype type{};
  int card = -1;
  const auto get = [&](void* to, CUpointer_attribute what) {
    return driver_.cuPointerGetAttribute_(to, what, address(memory)) == CUDA_SUCCESS;
  };
  const bool known = get(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) &&
                     get(&card, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
  return known && type == CU_MEMORYTYPE_DEVICE ? card : -1;
}

void* DriverApi::allocate_host(int64_t bytes) {
  void* memory = nullptr;
  CHECKED(cuMemHostAlloc)(&memory, static_cast<size_t>(bytes), unsigned{CU_MEMHOSTALLOC_PORTABLE});
  return memory;
}
void DriverApi::release_host(void* memory) { CHECKED(cuMemFreeHost)(memory); }

CudaStream DriverApi::make_stream() {
  CUstream stream = nullptr;
  CHECKED(cuStreamCreate)(&stream, unsigned{CU_STREAM_NON_BLOCKING});
  return reinterpret_cast<CudaStream>(stream);
}
void DriverApi::release(CudaStream stream) { CHECKED(cuStreamDestroy)(stream_of(stream)); }
void DriverApi::synchronize(CudaStream stream) { CHECKED(cuStreamSynchronize)(stream_of(stream)); }

std::string DriverApi::why_not_adopted(CudaStream stream) {
  const CUstream given = stream_of(stream);
  if (given == nullptr || given == CU_STREAM_LEGACY || given == CU_STREAM_PER_THREAD) return "";
  CUcontext context = nullptr;
  const CUresult result = driver_.cuStreamGetCtx_(given, &context);
  if (result != CUDA_SUCCESS) {
    const char* text = nullptr;
    driver_.cuGetErrorString_(result, &text);
    return fmt::format("cuStreamGetCtx: {}", text != nullptr ? text : "unknown error");
  }
  const std::lock_guard lock(mutex_);
  for (size_t card = 0; card < contexts_.size(); ++card) {
    if (context != contexts_[card]) continue;
    return static_cast<int>(card) == current_card ? ""
                                                  : fmt::format("it is one of device {}", card);
  }
  return "it is not of a primary context that a Session uses";
}

bool DriverApi::is_capturing(CudaStream stream) {
  CUstreamCaptureStatus status{};
  CHECKED(cuStreamIsCapturing)(stream_of(stream), &status);
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

CudaEvent DriverApi::make_event() {
  CUevent event = nullptr;
  CHECKED(cuEventCreate)(&event, unsigned{CU_EVENT_DISABLE_TIMING});
  return reinterpret_cast<CudaEvent>(event);
}
bool DriverApi::passed(CudaEvent event) {
  const CUresult state = driver_.cuEventQuery_(event_of(event));
  if (state != CUDA_ERROR_NOT_READY) driver_.check(state, "cuEventQuery", __LINE__);
  return state == CUDA_SUCCESS;
}
CudaEvent DriverApi::make_timer() {
  CUevent event = nullptr;
  CHECKED(cuEventCreate)(&event, unsigned{CU_EVENT_DEFAULT});
  return reinterpret_cast<CudaEvent>(event);
}
double DriverApi::seconds_between(CudaEvent first, CudaEvent second) {
  float ms = 0;
  CHECKED(cuEventElapsedTime)(&ms, event_of(first), event_of(second));
  return 1e-3 * static_cast<double>(ms);
}
void DriverApi::release(CudaEvent event) { CHECKED(cuEventDestroy)(event_of(event)); }
void DriverApi::record(CudaEvent event, CudaStream stream) {
  CHECKED(cuEventRecord)(event_of(event), stream_of(stream));
}
void DriverApi::wait(CudaStream stream, CudaEvent event) {
  CHECKED(cuStreamWaitEvent)(stream_of(stream), event_of(event), 0u);
}

void DriverApi::to_device(void* to, const void* host, int64_t bytes, CudaStream stream) {
  CHECKED(cuMemcpyHtoDAsync)(address(to), host, static_cast<size_t>(bytes), stream_of(stream));
}
void DriverApi::to_host(void* host, const void* from, int64_t bytes, CudaStream stream) {
  CHECKED(cuMemcpyDtoHAsync)(host, address(from), static_cast<size_t>(bytes), stream_of(stream));
}
void DriverApi::clear(void* memory, int64_t bytes, CudaStream stream) {
  CHECKED(cuMemsetD8Async)
  (address(memory), static_cast<unsigned char>(0), static_cast<size_t>(bytes), stream_of(stream));
}

CudaKernel DriverApi::load(const std::string& text) {
  const std::lock_guard lock(kernels_mutex_);
  CUfunction& kernel = kernels_[{current_card, text}];
  if (kernel == nullptr) {
    const CudaCard& card = cards_[static_cast<size_t>(current_card)];
    const std::string cubin = cache_.cubin(text, fmt::format("sm_{}{}", card.major, card.minor));
    CUmodule module = nullptr;
    CHECKED(cuModuleLoadData)(&module, cubin.data());
    CHECKED(cuModuleGetFunction)(&kernel, module, kName);
  }
  return reinterpret_cast<CudaKernel>(kernel);
}

void DriverApi::launch(const CudaLaunch& launch, CudaStream stream) {
  void* args[] = {const_cast<uint64_t*>(launch.words.data())};
  CHECKED(cuLaunchKernel)
  (reinterpret_cast<CUfunction>(launch.kernel), static_cast<unsigned>(launch.blocks), 1u, 1u,
   static_cast<unsigned>(launch.threads), 1u, 1u, 0u, stream_of(stream), static_cast<void**>(args),
   static_cast<void**>(nullptr));
}

CudaProduct DriverApi::prepare(const CudaGemm& gemm) {
  if (gemm.float8 && !Products::pays_in_bytes(gemm)) return nullptr;
  return products_->prepare(gemm, current_card);
}
std::string DriverApi::product_library() {
  int driver = 0;
  CHECKED(cuDriverGetVersion)(&driver);
  return fmt::format("{} on {}, driver {}", products_->version(),
                     cards_[static_cast<size_t>(current_card)].name, driver);
}
std::vector<std::string> DriverApi::algorithms(CudaProduct product, int most) {
  return products_->algorithms(product, most);
}
bool DriverApi::use_algorithm(CudaProduct product, const std::string& algorithm) {
  return products_->use_algorithm(product, algorithm);
}
int64_t DriverApi::product_workspace() { return Products::kWorkspace; }
void DriverApi::run(CudaProduct product, const void* a, const void* b, const void* added, void* c,
                    void* workspace, CudaStream stream) {
  products_->run(product, a, b, added, c, workspace, stream);
}
void DriverApi::release(CudaProduct product) { products_->release(product); }

std::string DriverApi::why_no_convolutions() { return convolutions_->why_not(); }
CudaConvolution DriverApi::prepare(const CudaConv& conv) {
  return convolutions_->prepare(conv, current_card, product_workspace());
}
void DriverApi::run(CudaConvolution convolution, const void* first, const void* second,
                    void* result, void* workspace, CudaStream stream) {
  convolutions_->run(convolution, first, second, result, workspace, stream);
}
void DriverApi::release(CudaConvolution convolution) { convolutions_->release(convolution); }

std::string DriverApi::why_no_attentions() { return attentions_->why_not(); }
CudaAttention DriverApi::prepare(const CudaAttend& attend, int64_t workspace, std::string& why) {
  const CudaCard& card = cards_[static_cast<size_t>(current_card)];
  return attentions_->prepare(attend, current_card, card.major, workspace, why);
}
void DriverApi::run(CudaAttention attention, const CudaAttendOperands& operands, void* workspace,
                    CudaStream stream) {
  attentions_->run(attention, operands, workspace, stream);
}
void DriverApi::release(CudaAttention attention) { attentions_->release(attention); }

void DriverApi::begin_capture(CudaStream stream) {
  CHECKED(cuStreamBeginCapture)(stream_of(stream), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

CudaGraph DriverApi::end_capture(CudaStream stream) {
  CUgraph graph = nullptr;
  CHECKED(cuStreamEndCapture)(stream_of(stream), &graph);
  CUgraphExec executable = nullptr;
  const CUresult made = driver_.cuGraphInstantiateWithFlags_(&executable, graph, 0ull);
  CHECKED(cuGraphDestroy)(graph);
  driver_.check(made, "cuGraphInstantiateWithFlags", __LINE__);
  return reinterpret_cast<CudaGraph>(executable);
}

void DriverApi::launch(CudaGraph graph, CudaStream stream) {
  CHECKED(cuGraphLaunch)(reinterpret_cast<CUgraphExec>(graph), stream_of(stream));
}
void DriverApi::release(CudaGraph graph) {
  CHECKED(cuGraphExecDestroy)(reinterpret_cast<CUgraphExec>(graph));
}

Groups& DriverApi::groups() {
  const std::lock_guard lock(mutex_);
  if (!groups_) groups_ = std::make_unique<Groups>();
  return *groups_;
}
std::string DriverApi::why_no_groups() { return groups().why_not(); }
std::string DriverApi::group_id() { return groups().id(); }
CudaGroup DriverApi::join(const std::string& id, int rank, int size, double seconds) {
  return groups().join(id, rank, size, seconds);
}
void DriverApi::begin_calls() { groups().begin(); }
void DriverApi::end_calls() { groups().end(); }
void DriverApi::all_reduce(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                           Combiner combiner, CudaStream stream) {
  groups().all_reduce(group, in, out, count, dtype, combiner, stream);
}
void DriverApi::reduce_scatter(CudaGroup group, const void* in, void* out, int64_t count,
                               DType dtype, Combiner combiner, CudaStream stream) {
  groups().reduce_scatter(group, in, out, count, dtype, combiner, stream);
}
void DriverApi::all_gather(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                           CudaStream stream) {
  groups().all_gather(group, in, out, count, dtype, stream);
}
std::string DriverApi::trouble(CudaGroup group) { return groups().trouble(group); }
void DriverApi::abort(CudaGroup group) noexcept { groups().abort(group); }

}  // namespace tessera::cuda

extern "C" {

/// See CudaOpen.
tessera::CudaApi* tessera_cuda_open(std::string& why) {
  try {
    static tessera::cuda::DriverApi api;
    return &api;
  } catch (const std::exception& e) {
    why = e.what();
    return nullptr;
  }
}

/// Makes a product, tells it to use the last algorithm that the library finds, and runs it, without
/// a card: what the tests ask for, with a `library` that works on the host. False: `log` says why.
bool tessera_cuda_multiply(const std::string& library, const tessera::CudaGemm& gemm, const void* a,
                           const void* b, const void* added, void* c, std::string& log) {
  try {
    tessera::cuda::Products products(library);
    const tessera::CudaProduct product = products.prepare(gemm, 0);
    const std::vector<std::string> words = products.algorithms(product, 8);
    const bool done = !products.use_algorithm(product, "nonsense") &&
                      products.use_algorithm(product, words.back());
    if (done) products.run(product, a, b, added, c, nullptr, nullptr);
    products.release(product);
    log = products.version();
    return done;
  } catch (const std::exception& e) {
    log = e.what();
    return false;
  }
}

/// Compiles a kernel for an architecture without a card: what the tests ask for. With a folder it
/// goes by way of a cache there, and `log` is "kept", "found", or why it is not kept. False: `log`
/// says why.
bool tessera_cuda_compile(const std::string& text, const std::string& arch,
                          const std::string& folder, std::string& cubin, std::string& log) {
  try {
    if (folder.empty()) {
      tessera::cuda::Compiled compiled = tessera::cuda::compile(text, arch, true);
      cubin = std::move(compiled.cubin);
      log = std::move(compiled.log);
      return true;
    }
    tessera::cuda::Cache cache(folder);
    cubin = cache.cubin(text, arch);
    log = !cache.why_not_kept().empty() ? cache.why_not_kept()
          : cache.hits() > 0            ? "found"
                                        : "kept";
    return true;
  } catch (const std::exception& e) {
    log = e.what();
    return false;
  }
}
}
