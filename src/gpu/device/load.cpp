// Opens the driver and libtessera_cuda.so at run time. This binary links neither, so it starts just
// as well on a machine without a GPU.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "base/fail.h"
#include "base/plugin.h"
#include "gpu/device/cuda_api.h"

namespace tessera {

namespace {

/// A driver runs programs built with a toolkit of its own major version or an older one.
int oldest_driver() { return std::max(12, std::atoi(TESSERA_CUDA_TOOLKIT)) * 1000; }

struct Loaded {
  std::mutex mutex;
  CudaApi* api = nullptr;
  CudaApi* replacement = nullptr;
};
Loaded& loaded() {
  static Loaded instance;
  return instance;
}

}  // namespace

CudaSupport cuda_support() {
  CudaSupport support;
  support.toolkit = TESSERA_CUDA_TOOLKIT;
  {
    Loaded& l = loaded();
    const std::lock_guard lock(l.mutex);
    if (l.replacement != nullptr) {
      support.gpus = static_cast<int>(l.replacement->contexts().gpus().size());
      return support;
    }
  }
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) {
    support.why_not = "this machine has no NVIDIA driver (libcuda.so.1)";
  } else {
    using Init = int (*)(unsigned);
    using Get = int (*)(int*);
    const auto init = reinterpret_cast<Init>(dlsym(driver, "cuInit"));
    const auto version = reinterpret_cast<Get>(dlsym(driver, "cuDriverGetVersion"));
    const auto count = reinterpret_cast<Get>(dlsym(driver, "cuDeviceGetCount"));
    int number = 0;
    if (init == nullptr || version == nullptr || count == nullptr || version(&number) != 0) {
      support.why_not = "libcuda.so.1 is no driver";
    } else {
      support.driver = fmt::format("{}.{}", number / 1000, number % 1000 / 10);
      const int error = init(0);
      if (number < oldest_driver()) {
        support.why_not = fmt::format("the driver can do CUDA {}; {}.0 or newer is needed",
                                      support.driver, oldest_driver() / 1000);
      } else if (error != 0 || count(&support.gpus) != 0 || support.gpus == 0) {
        support.gpus = 0;
        support.why_not = fmt::format("the driver sees no GPU (cuInit: {})", error);
      }
    }
  }
  if (support.toolkit.empty()) {
    support.why_not =
        "this build has no CUDA: no toolkit was found, or TESSERA_CUDA was OFF, when it was "
        "configured" +
        (support.why_not.empty() ? "" : "; and " + support.why_not);
  }
  return support;
}

CudaApi& cuda_api() {
  {
    Loaded& l = loaded();
    const std::lock_guard lock(l.mutex);
    if (l.replacement != nullptr) return *l.replacement;
    if (l.api != nullptr) return *l.api;
  }
  const CudaSupport support = cuda_support();
  if (!support.why_not.empty())
    fail(ErrorKind::unsupported, "no GPU can be used: {}", support.why_not);
  Loaded& l = loaded();
  const std::lock_guard lock(l.mutex);
  if (l.api != nullptr) return *l.api;
  std::string why;
  const auto open =
      reinterpret_cast<CudaOpen>(open_plugin("libtessera_cuda.so", "tessera_cuda_open", why));
  l.api = open ? open(why) : nullptr;
  if (l.api == nullptr) fail(ErrorKind::unsupported, "no GPU can be used: {}", why);
  return *l.api;
}

void replace_cuda_api(CudaApi* api) {
  Loaded& l = loaded();
  const std::lock_guard lock(l.mutex);
  l.replacement = api;
}

}  // namespace tessera
