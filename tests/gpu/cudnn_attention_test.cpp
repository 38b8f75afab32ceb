// That cuDNN has kernels for the attention that it is asked for, without a GPU: it is told of one,
// and compiles for it. A process of its own gets a libcuda that takes what was compiled.
#include <dlfcn.h>

#include "gpu/device/cuda_api.h"
#include "support/catch.h"
#include "support/child_case.h"

namespace tessera::test {

namespace TESSERA_FILE {

using Attend = bool (*)(const CudaAttend& attend, const std::string& gpu, int major, int64_t most,
                        bool compiles, std::string& says);

constexpr char kInChild[] = "what cuDNN has for attention on a GPU that it was told about";

/// An H200 as cuDNN writes a GPU.
constexpr char kGpu[] = R"({"deviceName": "NVIDIA H200", "cudaDeviceId": 0, "deviceVer": 900,
  "driverVer": 13000, "isTccDriver": 0, "l2CacheSize": 62914560, "maxCtasPerSM": 32,
  "maxRegistersPerSM": 65536, "maxSharedMemoryPerBlock": 49152,
  "maxSharedMemoryPerBlockOptin": 232448, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048,
  "memClockRateKHz": 3201000, "multiProcessorCount": 132, "pciDeviceId": 0, "regsPerBlock": 65536,
  "reservedSharedMemoryPerBlock": 1024, "smClockRateKHz": 1980000, "supportCoopLaunch": 1,
  "totalGlobalMem": 150754820096, "warpSize": 32, "maxBlockSize": [1024, 1024, 64],
  "maxGridSize": [2147483647, 65535, 65535]})";

/// Variant `bits` of an attention of 12 heads: backward, causal, type, width, shared keys, and
/// whether heads are outside of positions.
CudaAttend variant(int bits, int64_t batch, int64_t length) {
  CudaAttend a;
  a.backward = (bits & 1) != 0;
  a.causal = (bits & 2) != 0;
  a.dtype = (bits & 4) != 0 ? DType::float16 : DType::bfloat16;
  a.width = (bits & 8) != 0 ? 128 : 64;
  a.heads = 12;
  a.key_heads = (bits & 16) != 0 ? 4 : 12;
  a.batch = batch;
  a.queries = a.keys = length;
  const auto strides = [&](int64_t heads) {
    const int64_t all = heads * length * a.width;
    return (bits & 32) != 0 ? CudaAttend::Strides{all, length * a.width, a.width}
                            : CudaAttend::Strides{all, a.width, heads * a.width};
  };
  a.query = a.out = a.grad = a.query_grad = strides(a.heads);
  a.key = a.value = a.key_grad = a.value_grad = strides(a.key_heads);
  a.log_sum = {a.heads * length, length, 1};
  return a;
}

std::string say(Attend attend, const CudaAttend& a, bool compiles, int64_t most) {
  std::string says;
  if (!attend(a, kGpu, 9, most, compiles, says)) return "failed: " + says;
  return says;
}

TEST_CASE(kInChild, "[.attend_library]") {
  void* driver = dlopen(TESSERA_LIBCUDA, RTLD_NOW | RTLD_GLOBAL);
  REQUIRE(driver != nullptr);
  void* cuda = dlopen(TESSERA_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(cuda != nullptr);
  const auto attend = reinterpret_cast<Attend>(dlsym(cuda, "tessera_cuda_attend"));
  if (attend == nullptr) {
    puts("skipped: this build has no cuDNN that can be told about a GPU");
    return;
  }
  constexpr int64_t kMost = int64_t{1} << 30;
  const std::string first = say(attend, variant(0, 2, 1024), false, kMost);
  if (first.find("failed: ") == 0) {
    puts(("skipped: " + first).c_str());
    return;
  }
  for (int bits = 0; bits < 64; ++bits) {
    const int64_t lengths[] = {1000, 77, 1024};
    const std::string says = say(attend, variant(bits, 2, lengths[bits % 3]), false, kMost);
    INFO("variant " << bits << ": " << says);
    CHECK(says.find("engine ") == 0);
    CHECK(says.find("no fixed order") == std::string::npos);
  }
  for (const int bits : {2, 3, 8 + 16 + 32 + 1}) {  // each is compiled in seconds
    const std::string says = say(attend, variant(bits, 2, 1000), true, kMost);
    INFO("variant " << bits << ": " << says);
    CHECK(says.find("none: ") == std::string::npos);
    const std::string with = " with a workspace of ";
    const size_t bytes = says.rfind(with);
    REQUIRE(bytes != std::string::npos);
    // Backward adds in a fixed order where it stores the gradients of the logits.
    const int64_t least = (bits & 1) != 0 ? 2 * 12 * 1000 * 1000 * 2 : 0;
    CHECK(std::stoll(says.substr(bytes + with.size())) >= least);
  }
  CudaAttend odd = variant(0, 2, 1000);
  odd.width = 60;
  CHECK(say(attend, odd, false, kMost) == "none: it is not asked for");
  odd = variant(1, 2, 1000);
  CHECK(say(attend, odd, true, 1 << 20).find("none: engine ") != std::string::npos);
}

TEST_CASE("cuDNN has kernels for attention, forward and backward", "[cuda]") {
  check_in_child(kInChild);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
