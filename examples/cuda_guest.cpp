// Tessera inside a program that uses CUDA itself. The program's kernel and a Session take turns on
// one stream and on one plate in GPU memory; the host waits only once, at the end. The kernel,
// compiled by NVRTC, heats one point. The Session's step spreads the heat by matmuls and
// loses none, so the sum is known.
//
// Driver and compiler are opened at run time: without them the program says so and exits normally.
// With the CUDA runtime API the stream is a cudaStream_t and nothing else changes.
#include <cuda.h>
#include <dlfcn.h>
#include <nvrtc.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "tessera/interop/cuda.h"
#include "tessera/tessera.h"
using namespace tessera;

namespace {

constexpr int kPoints = 64, kSteps = 100;
constexpr double kRate = 0.2;  // dt / dx^2

const char* const kHeat = R"(
extern "C" __global__ void heat(float* next, const float* plate, int points) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= points * points) return;
  next[i] = plate[i] + (i == points * points / 2 + points / 2 ? 1.0f : 0.0f);
})";

void require(bool ok, const std::string& what) {
  if (!ok) throw Error(ErrorKind::device, what + " failed");
}

template <class F>
void get(void* library, F& function, const char* name) {
  function = reinterpret_cast<F>(dlsym(library, name));
  require(function != nullptr, std::string("finding ") + name);
}

std::string compile(const char* text, const std::string& arch) {
  void* library = dlopen(NVRTC_LIBRARY, RTLD_NOW);
  require(library != nullptr, "opening " NVRTC_LIBRARY);
  decltype(&nvrtcCreateProgram) create;
  decltype(&nvrtcCompileProgram) compile;
  decltype(&nvrtcGetCUBINSize) size;
  decltype(&nvrtcGetCUBIN) cubin;
  get(library, create, "nvrtcCreateProgram");
  get(library, compile, "nvrtcCompileProgram");
  get(library, size, "nvrtcGetCUBINSize");
  get(library, cubin, "nvrtcGetCUBIN");
  nvrtcProgram program = nullptr;
  const std::string option = "--gpu-architecture=" + arch;
  const char* options[] = {option.c_str()};
  size_t bytes = 0;
  require(create(&program, text, "heat.cu", 0, nullptr, nullptr) == NVRTC_SUCCESS &&
              compile(program, 1, options) == NVRTC_SUCCESS &&
              size(program, &bytes) == NVRTC_SUCCESS,
          "compiling the kernel for " + arch);
  std::string code(bytes, '\0');
  require(cubin(program, code.data()) == NVRTC_SUCCESS, "compiling the kernel");
  return code;
}

/// The program's side: device 0 with its primary context, a stream, the plate before and after a
/// step, and the kernel.
struct Host {
  void* library;
  CUstream stream = nullptr;
  CUdeviceptr before = 0, after = 0;
  CUfunction kernel = nullptr;
  decltype(&cuLaunchKernel) launch;
  static constexpr size_t kBytes = sizeof(float) * kPoints * kPoints;

  explicit Host(void* driver) : library(driver) {
    CUdevice device = 0;
    CUcontext context = nullptr;
    CUmodule module = nullptr;
    int major = 0, minor = 0;
    call<decltype(&cuInit)>("cuInit", 0u);
    call<decltype(&cuDeviceGet)>("cuDeviceGet", &device, 0);
    const char* const attribute = "cuDeviceGetAttribute";
    call<decltype(&cuDeviceGetAttribute)>(attribute, &major,
                                          CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    call<decltype(&cuDeviceGetAttribute)>(attribute, &minor,
                                          CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    call<decltype(&cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain", &context, device);
    call<decltype(&cuCtxSetCurrent)>("cuCtxSetCurrent", context);
    call<decltype(&cuStreamCreate)>("cuStreamCreate", &stream, unsigned{CU_STREAM_NON_BLOCKING});
    call<decltype(&cuMemAlloc)>("cuMemAlloc_v2", &before, kBytes);
    call<decltype(&cuMemAlloc)>("cuMemAlloc_v2", &after, kBytes);
    call<decltype(&cuMemsetD8Async)>("cuMemsetD8Async", after, static_cast<unsigned char>(0),
                                     kBytes, stream);
    const std::string arch = "sm_" + std::to_string(major) + std::to_string(minor);
    const std::string code = compile(kHeat, arch);
    call<decltype(&cuModuleLoadData)>("cuModuleLoadData", &module, code.data());
    call<decltype(&cuModuleGetFunction)>("cuModuleGetFunction", &kernel, module, "heat");
    get(library, launch, "cuLaunchKernel");
  }

  template <class F, class... Args>
  void call(const char* name, Args... args) {
    F function;
    get(library, function, name);
    require(function(args...) == CUDA_SUCCESS, name);
  }

  /// Copies `after` to `before` and heats one point.
  void heat() {
    int points = kPoints;
    void* args[] = {&before, &after, &points};
    const unsigned blocks = kPoints * kPoints / 256;
    require(launch(kernel, blocks, 1, 1, 256, 1, 1, 0, stream, args, nullptr) == CUDA_SUCCESS,
            "launching the kernel");
  }
};

/// A matrix [from, to] that moves heat to neighbours; none leaves at the border.
Tensor spread(Graph& g, const Dim& from, const Dim& to) {
  Tensor distance = abs(cast(iota(g, from) - iota(g, to), DType::float32));
  Tensor zero = constant(g, 0), one = constant(g, 1);
  Tensor near = where(distance < 0.5, zero, where(distance < 1.5, one, zero));
  Tensor neighbours = reduce_sum(near, to.name);
  return (near - where(distance < 0.5, one, zero) * neighbours) * kRate;
}

int run(void* driver) {
  Host host(driver);
  const Dim x("x", kPoints), y("y", kPoints), new_x("new_x", kPoints), new_y("new_y", kPoints);
  Graph g;
  Tensor u = g.input("before", {x, y}, DType::float32);
  Tensor along_x = rename(einsum({u, spread(g, x, new_x)}, {new_x, y}), "new_x", "x");
  Tensor along_y = rename(einsum({u, spread(g, y, new_y)}, {x, new_y}), "new_y", "y");
  Tensor after = (u + along_x + along_y).named("after");

  CompileOptions options{Mesh::parse("all:1"), {}, {{"step", {after}, /*updates=*/false}}};
  CudaGuest guest;
  guest.stream = host.stream;
  guest.memory_limit = int64_t{64} << 20;
  guest.buffers = {{"before", reinterpret_cast<void*>(host.before), Host::kBytes},
                   {"after", reinterpret_cast<void*>(host.after), Host::kBytes}};
  adopt_cuda(options, {guest});
  Cluster cluster = Cluster::threads(1);
  Session session(g, cluster, options);
  for (int step = 0; step < kSteps; ++step) {
    host.heat();              // the program's kernel
    session.enqueue("step");  // Tessera's
  }
  const Array plate = session.fetch("after");  // waits, for the first time
  double sum = 0;
  for (int64_t i = 0; i < plate.elements(); ++i) sum += plate.at(i);
  std::printf("%d steps: %.3f units of heat on the plate, %d were put there\n", kSteps, sum,
              kSteps);
  return std::fabs(sum - kSteps) < 1e-2 ? 0 : 1;
}

}  // namespace

int main() try {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  int gpus = 0;
  if (driver != nullptr) {
    decltype(&cuInit) init;
    decltype(&cuDeviceGetCount) count;
    get(driver, init, "cuInit");
    get(driver, count, "cuDeviceGetCount");
    if (init(0) != CUDA_SUCCESS || count(&gpus) != CUDA_SUCCESS) gpus = 0;
  }
  if (gpus == 0) {
    std::printf("cuda_guest: there is no %s on this machine, so there is nothing to share\n",
                driver == nullptr ? "NVIDIA driver" : "GPU");
    return 0;
  }
  return run(driver);
} catch (const Error& e) {
  std::fprintf(stderr, "cuda_guest: %s\n", e.what());
  return 1;
}
