// Each rule of the driver that the stand-in of libcuda enforces, broken once.
#include "gpu/emulator.h"
#include "gpu/rules/driver.h"
#include "support/catch.h"
#include "support/expect_error.h"

namespace tessera::test::rules {

namespace TESSERA_FILE {

/// What the stand-in of NVRTC makes of a kernel that does nothing.
std::string code(const std::string& arch) {
  return arch +
         "\nstruct Args {\n  long long unused;\n};\nextern \"C\" __global__ void "
         "tessera_kernel(Args) {\n}\n";
}

/// Two GPUs with a stream each, the first one current; calls go through no code of Tessera.
struct TwoGpus {
  CudaEmulator gpu{2};
  CUcontext contexts[2] = {};
  CUstream a = nullptr, b = nullptr, other = nullptr;
  CUevent event = nullptr;
  CUdeviceptr memory = 0;

  TwoGpus() {
    gpu.direct = false;
    gpu.contexts().gpus();
    for (int g = 1; g >= 0; --g) {
      CHECK(rules::cuDevicePrimaryCtxRetain(&contexts[g], g) == CUDA_SUCCESS);
      CHECK(rules::cuCtxSetCurrent(contexts[g]) == CUDA_SUCCESS);
      make(g == 1 ? other : a);
    }
    make(b);
    CHECK(rules::cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    CHECK(rules::cuMemAlloc(&memory, 64) == CUDA_SUCCESS);
  }
  void make(CUstream& stream, unsigned flags = CU_STREAM_NON_BLOCKING) {
    CHECK(rules::cuStreamCreateWithPriority(&stream, flags, 0) == CUDA_SUCCESS);
  }
  /// Begins a capture of stream a.
  void begin(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) {
    REQUIRE(rules::cuStreamBeginCapture(a, mode) == CUDA_SUCCESS);
  }
  /// Ends it, which has to fail so; then a captures again.
  void end_fails(CUresult error) {
    CUgraph graph = nullptr;
    CHECK(rules::cuStreamEndCapture(a, &graph) == error);
    CHECK(graph == nullptr);
    begin();
    REQUIRE(rules::cuStreamEndCapture(a, &graph) == CUDA_SUCCESS);
    CHECK(rules::cuGraphDestroy(graph) == CUDA_SUCCESS);
  }
};

TEST_CASE("rules of the driver: cuInit() first, then a context of the thread", "[cuda]") {
  CudaEmulator gpu;
  Machine machine(gpu.emulated());
  int count = 0;
  CHECK(rules::cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED);
  CHECK(rules::cuInit(1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(rules::cuInit(0) == CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  CHECK(rules::cuMemAlloc(&memory, 64) == CUDA_ERROR_INVALID_CONTEXT);
  CUcontext context = nullptr;
  CHECK(rules::cuDevicePrimaryCtxRetain(&context, 1) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(rules::cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  CHECK(rules::cuMemAlloc(&memory, 64) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(rules::cuCtxSetCurrent(context) == CUDA_SUCCESS);
  CHECK(rules::cuMemAlloc(&memory, 64) == CUDA_SUCCESS);
  CUresult elsewhere = CUDA_SUCCESS;
  std::thread([&] { elsewhere = rules::cuMemFree(memory); }).join();
  CHECK(elsewhere == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(rules::cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  CUmemorytype type{};
  CHECK(rules::cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory) ==
        CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("rules of the driver: handles live, and are of the context", "[cuda]") {
  TwoGpus two;
  CHECK(rules::cuEventRecord(two.event, two.other) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(rules::cuEventDestroy(two.event) == CUDA_SUCCESS);
  CHECK(rules::cuEventDestroy(two.event) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(rules::cuEventRecord(two.event, two.a) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(rules::cuEventQuery(two.event) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(rules::cuStreamWaitEvent(two.a, two.event, 0) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(rules::cuStreamDestroy(two.b) == CUDA_SUCCESS);
  CHECK(rules::cuStreamSynchronize(two.b) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(rules::cuStreamDestroy(two.b) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(rules::cuMemFree(two.memory) == CUDA_SUCCESS);
  CHECK(rules::cuMemFree(two.memory) == CUDA_ERROR_INVALID_VALUE);
  CHECK(rules::cuMemAlloc(&two.memory, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(rules::cuMemFreeHost(&two) == CUDA_ERROR_INVALID_VALUE);
  CHECK(rules::cuCtxEnablePeerAccess(two.contexts[0], 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(rules::cuCtxEnablePeerAccess(two.contexts[1], 0) == CUDA_SUCCESS);
  CHECK(rules::cuCtxEnablePeerAccess(two.contexts[1], 0) == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CHECK(rules::cuModuleLoadData(&module, "ELF") == CUDA_ERROR_INVALID_IMAGE);
  REQUIRE(rules::cuModuleLoadData(&module, code("sm_90").c_str()) == CUDA_SUCCESS);
  CHECK(rules::cuModuleGetFunction(&function, module, "other_kernel") == CUDA_ERROR_NOT_FOUND);
  REQUIRE(rules::cuModuleGetFunction(&function, module, "tessera_kernel") == CUDA_SUCCESS);
  uint64_t word = 0;
  void* args[] = {&word};
  const auto launch = [&](CUstream stream, unsigned threads) {
    return rules::cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, stream, args, nullptr);
  };
  CHECK(launch(two.other, 32) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(launch(two.a, 2048) == CUDA_ERROR_INVALID_VALUE);
  CHECK(launch(two.a, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("rules of the driver: code is for the GPU, and PTX for the driver", "[cuda]") {
  TwoGpus two;
  CUmodule module = nullptr;
  CHECK(rules::cuModuleLoadData(&module, code("sm_80").c_str()) == CUDA_ERROR_NO_BINARY_FOR_GPU);
  CHECK(rules::cuModuleLoadData(&module, code("sm_100").c_str()) == CUDA_ERROR_NO_BINARY_FOR_GPU);
  CHECK(rules::cuModuleLoadData(&module, code("compute_100").c_str()) ==
        CUDA_ERROR_NO_BINARY_FOR_GPU);
  CHECK(rules::cuModuleLoadData(&module, code("compute_80").c_str()) == CUDA_SUCCESS);
  two.gpu.driver_version = 12040;
  CHECK(rules::cuModuleLoadData(&module, code("compute_80").c_str()) ==
        CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
}

TEST_CASE("rules of the driver: work is done when its stream gets there", "[cuda]") {
  TwoGpus two;
  CUevent first = nullptr, second = nullptr;
  CHECK(rules::cuEventCreate(&first, CU_EVENT_DEFAULT) == CUDA_SUCCESS);
  CHECK(rules::cuEventCreate(&second, CU_EVENT_DEFAULT) == CUDA_SUCCESS);
  float ms = 0;
  CHECK(rules::cuEventElapsedTime(&ms, first, second) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(rules::cuEventRecord(first, two.a) == CUDA_SUCCESS);
  void* host = nullptr;
  CHECK(rules::cuMemHostAlloc(&host, 64, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS);
  static_cast<char*>(host)[0] = 7;
  CHECK(rules::cuMemsetD8Async(two.memory, 0, 64, two.a) == CUDA_SUCCESS);
  CHECK(rules::cuMemcpyDtoHAsync(host, two.memory, 64, two.a) == CUDA_SUCCESS);
  CHECK(rules::cuEventRecord(second, two.a) == CUDA_SUCCESS);
  CHECK(static_cast<char*>(host)[0] == 7);
  CHECK(rules::cuEventElapsedTime(&ms, first, second) == CUDA_ERROR_NOT_READY);
  two.gpu.stuck = true;
  CHECK(rules::cuEventQuery(second) == CUDA_ERROR_NOT_READY);
  two.gpu.stuck = false;
  CHECK(rules::cuEventQuery(second) == CUDA_SUCCESS);
  CHECK(static_cast<char*>(host)[0] == 0);
  CHECK(rules::cuEventElapsedTime(&ms, first, second) == CUDA_SUCCESS);
  CHECK(rules::cuEventRecord(two.event, two.a) == CUDA_SUCCESS);
  CHECK(rules::cuStreamSynchronize(two.a) == CUDA_SUCCESS);
  CHECK(rules::cuEventElapsedTime(&ms, first, two.event) ==
        CUDA_ERROR_INVALID_HANDLE);  // without timing
}

TEST_CASE("rules of the driver: memory runs out", "[cuda]") {
  TwoGpus two;
  two.gpu.taken = (int64_t{1} << 30) - 4096;
  size_t free = 0, total = 0;
  CHECK(rules::cuMemGetInfo(&free, &total) == CUDA_SUCCESS);
  CHECK(total == size_t{1} << 30);
  CHECK(free < 4096);
  CUdeviceptr memory = 0;
  CHECK(rules::cuMemAlloc(&memory, 4096) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(rules::cuMemAlloc(&memory, 2048) == CUDA_SUCCESS);
  two.gpu.largest_allocation = 100;
  CHECK(rules::cuMemAlloc(&memory, 128) == CUDA_ERROR_OUT_OF_MEMORY);
  two.gpu.host_memory = 100;
  void* host = nullptr;
  CHECK(rules::cuMemHostAlloc(&host, 128, 0) == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("rules of the driver: an illegal address is told later, and for ever", "[cuda]") {
  TwoGpus two;
  two.gpu.illegal_launch = 1;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  REQUIRE(rules::cuModuleLoadData(&module, code("sm_90").c_str()) == CUDA_SUCCESS);
  REQUIRE(rules::cuModuleGetFunction(&function, module, "tessera_kernel") == CUDA_SUCCESS);
  const LaunchContents contents{{0}, {}};
  Machine::launched() = &contents;
  uint64_t word = 0;
  void* args[] = {&word};
  CHECK(rules::cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, two.a, args, nullptr) == CUDA_SUCCESS);
  Machine::launched() = nullptr;
  CHECK(rules::cuMemsetD8Async(two.memory, 0, 64, two.a) == CUDA_SUCCESS);
  CHECK(rules::cuStreamSynchronize(two.a) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(rules::cuMemsetD8Async(two.memory, 0, 64, two.b) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(rules::cuMemFree(two.memory) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(rules::cuCtxSetCurrent(two.contexts[1]) == CUDA_SUCCESS);
  CHECK(rules::cuStreamSynchronize(two.other) == CUDA_SUCCESS);  // the other GPU has none
}

TEST_CASE("rules of a capture: calls that wait or allocate invalidate it", "[cuda]") {
  TwoGpus two;
  CUdeviceptr memory = 0;
  void* host = nullptr;
  CUmodule module = nullptr;
  CHECK(rules::cuEventRecord(two.event, two.b) == CUDA_SUCCESS);
  const std::vector<std::function<CUresult()>> calls = {
      [&] { return rules::cuStreamSynchronize(two.a); },
      [&] { return rules::cuStreamSynchronize(two.b); },
      [&] { return rules::cuEventQuery(two.event); },
      [&] { return rules::cuMemAlloc(&memory, 64); },
      [&] { return rules::cuMemFree(two.memory); },
      [&] { return rules::cuMemHostAlloc(&host, 64, 0); },
      [&] { return rules::cuModuleLoadData(&module, code("sm_90").c_str()); }};
  for (const auto& call : calls) {
    two.begin();
    CHECK(call() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CUstreamCaptureStatus status{};
    CHECK(rules::cuStreamIsCapturing(two.a, &status) == CUDA_SUCCESS);
    CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    CHECK(rules::cuMemsetD8Async(two.memory, 0, 64, two.a) ==
          CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    two.end_fails(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
}

TEST_CASE("rules of a capture: the mode says whose calls count", "[cuda]") {
  TwoGpus two;
  const auto allocate_elsewhere = [&] {
    CUresult result = CUDA_SUCCESS;
    std::thread([&] {
      CUdeviceptr memory = 0;
      CHECK(rules::cuCtxSetCurrent(two.contexts[0]) == CUDA_SUCCESS);
      result = rules::cuMemAlloc(&memory, 64);
    }).join();
    return result;
  };
  CUgraph graph = nullptr;
  CUdeviceptr memory = 0;
  two.begin();
  CHECK(allocate_elsewhere() == CUDA_SUCCESS);
  CHECK(rules::cuStreamEndCapture(two.a, &graph) == CUDA_SUCCESS);
  two.begin(CU_STREAM_CAPTURE_MODE_RELAXED);
  CHECK(rules::cuMemAlloc(&memory, 64) == CUDA_SUCCESS);
  CHECK(rules::cuStreamEndCapture(two.a, &graph) == CUDA_SUCCESS);
  two.begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  CHECK(allocate_elsewhere() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  two.end_fails(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE("rules of a capture: dependencies stay inside, streams are joined", "[cuda]") {
  TwoGpus two;
  CUgraph graph = nullptr;
  CHECK(rules::cuEventRecord(two.event, two.b) == CUDA_SUCCESS);
  two.begin();
  CHECK(rules::cuStreamBeginCapture(two.a, CU_STREAM_CAPTURE_MODE_RELAXED) ==
        CUDA_ERROR_ILLEGAL_STATE);
  CHECK(rules::cuStreamWaitEvent(two.a, two.event, 0) == CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  two.end_fails(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

  two.begin();
  CHECK(rules::cuEventRecord(two.event, two.a) == CUDA_SUCCESS);
  CHECK(rules::cuEventQuery(two.event) == CUDA_ERROR_CAPTURED_EVENT);
  two.end_fails(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(rules::cuStreamWaitEvent(two.b, two.event, 0) == CUDA_ERROR_CAPTURED_EVENT);

  two.begin();
  CHECK(rules::cuEventRecord(two.event, two.a) == CUDA_SUCCESS);
  CHECK(rules::cuStreamWaitEvent(two.b, two.event, 0) == CUDA_SUCCESS);
  CHECK(rules::cuMemsetD8Async(two.memory, 0, 64, two.b) == CUDA_SUCCESS);
  CHECK(rules::cuStreamEndCapture(two.b, &graph) == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  two.end_fails(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

  two.begin();
  CHECK(rules::cuEventRecord(two.event, two.a) == CUDA_SUCCESS);
  CHECK(rules::cuStreamWaitEvent(two.b, two.event, 0) == CUDA_SUCCESS);
  CHECK(rules::cuMemsetD8Async(two.memory, 0, 64, two.b) == CUDA_SUCCESS);
  two.end_fails(CUDA_ERROR_STREAM_CAPTURE_UNJOINED);

  two.begin();
  CHECK(rules::cuStreamBeginCapture(two.b, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS);
  CHECK(rules::cuEventRecord(two.event, two.b) == CUDA_SUCCESS);
  CHECK(rules::cuStreamWaitEvent(two.a, two.event, 0) == CUDA_ERROR_STREAM_CAPTURE_MERGE);
  CHECK(rules::cuStreamEndCapture(two.b, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  two.end_fails(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

  two.begin();
  CUresult elsewhere = CUDA_SUCCESS;
  std::thread([&] {
    CHECK(rules::cuCtxSetCurrent(two.contexts[0]) == CUDA_SUCCESS);
    elsewhere = rules::cuStreamEndCapture(two.a, &graph);
  }).join();
  CHECK(elsewhere == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  CHECK(rules::cuStreamEndCapture(two.a, &graph) == CUDA_SUCCESS);
  CHECK(rules::cuStreamEndCapture(two.a, &graph) == CUDA_ERROR_ILLEGAL_STATE);
}

TEST_CASE("rules of a capture: the legacy stream and graphs in graphs", "[cuda]") {
  TwoGpus two;
  CHECK(rules::cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED) ==
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph graph = nullptr;
  two.begin();
  CHECK(rules::cuMemsetD8Async(two.memory, 0, 64, nullptr) ==
        CUDA_SUCCESS);  // a does not wait for it
  CHECK(rules::cuStreamEndCapture(two.a, &graph) == CUDA_SUCCESS);
  CUgraphExec executable = nullptr;
  CHECK(rules::cuGraphInstantiateWithFlags(&executable, graph, 0) == CUDA_SUCCESS);
  CHECK(rules::cuGraphDestroy(graph) == CUDA_SUCCESS);
  CHECK(rules::cuGraphDestroy(graph) == CUDA_ERROR_INVALID_VALUE);
  CHECK(rules::cuGraphLaunch(executable, two.b) == CUDA_SUCCESS);
  two.begin();
  CHECK(rules::cuGraphLaunch(executable, two.a) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  two.end_fails(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(rules::cuGraphExecDestroy(executable) == CUDA_SUCCESS);
  CHECK(rules::cuGraphLaunch(executable, two.a) == CUDA_ERROR_INVALID_VALUE);
  CUstream blocking = nullptr;
  two.make(blocking, CU_STREAM_DEFAULT);
  CHECK(rules::cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS);
  CHECK(rules::cuMemsetD8Async(two.memory, 0, 64, nullptr) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CHECK(rules::cuStreamEndCapture(blocking, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE("what the driver refuses is a device error with the call, its cause and its place",
          "[cuda]") {
  CudaEmulator gpu;
  gpu.direct = false;
  gpu.contexts().use(0);
  const CudaStream stream = gpu.streams().make_stream();
  gpu.graphs().begin_capture(stream);
  expect_error(
      ErrorKind::device,
      {"cuStreamSynchronize: operation not permitted when stream is capturing", "(driver.cpp:"},
      [&] { gpu.streams().synchronize(stream); });
  expect_error(ErrorKind::device,
               {"cuStreamEndCapture: operation failed due to a previous error during capture"},
               [&] { gpu.graphs().end_capture(stream); });
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test::rules
