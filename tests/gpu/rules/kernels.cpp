// Modules and launches. A module is what the stand-in of NVRTC made: a line that says for which
// architecture, and the kernel's text.
#include <cstring>

#include "base/fail.h"
#include "gpu/rules/driver.h"
#include "gpu/rules/nvrtc.h"

namespace tessera::test::rules {

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  const Entered in;
  if (in.result != CUDA_SUCCESS) return in.result;
  if (const CUresult unsafe = check_unsafe(*in.m); unsafe != CUDA_SUCCESS) return unsafe;
  const std::optional<Image> read = read_image(static_cast<const char*>(image));
  if (!read) return CUDA_ERROR_INVALID_IMAGE;
  const EmulatorSettings& settings = in.m->settings;
  if (read->is_ptx) {  // for this GPU or an older one, by a toolkit that the driver knows
    if (settings.toolkit > settings.driver_version) return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    if (read->arch > 10 * settings.major + settings.minor) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  } else if (read->arch / 10 != settings.major || read->arch % 10 > settings.minor) {
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  const CudaKernel kernel = in.m->gpu.kernels().load(read->text);
  const std::lock_guard lock(in.m->state.mutex);
  *module = reinterpret_cast<CUmodule>(in.m->modules.size() + 1);
  in.m->modules[*module] = {in.context->gpu, kernel};
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  const Entered in;
  if (in.result != CUDA_SUCCESS) return in.result;
  const std::lock_guard lock(in.m->state.mutex);
  if (in.m->modules.count(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
  if (std::strcmp(name, "tessera_kernel") != 0) return CUDA_ERROR_NOT_FOUND;
  *function = reinterpret_cast<CUfunction>(module);
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned threads,
                        unsigned ty, unsigned tz, unsigned shared, CUstream given, void** args,
                        void** extra) {
  constexpr unsigned kMostThreads = 1024;
  const Entered in;
  if (in.result != CUDA_SUCCESS) return in.result;
  Machine& m = *in.m;
  EmulatorState::Stream* stream = find_stream(m, given);
  const std::lock_guard lock(m.state.mutex);
  const auto found = m.modules.find(reinterpret_cast<CUmodule>(function));
  if (stream == nullptr || found == m.modules.end() || found->second.first != stream->gpu ||
      stream->gpu != in.context->gpu)
    return CUDA_ERROR_INVALID_HANDLE;
  if (x == 0 || y != 1 || z != 1 || threads == 0 || threads > kMostThreads || ty != 1 || tz != 1 ||
      shared != 0 || args == nullptr || extra != nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult bad = check_capture(m, given, *stream); bad != CUDA_SUCCESS) return bad;
  const LaunchContents* contents = Machine::launched();
  TESSERA_CHECK(contents != nullptr, "a launch of which nobody said what memory it touches");
  TESSERA_CHECK(std::memcmp(args[0], contents->words.data(), 8 * contents->words.size()) == 0,
                "a launch with other arguments than were given");
  if (++m.launches == m.settings.illegal_launch) {
    m.state.submit(given == nullptr ? reinterpret_cast<CudaStream>(stream)
                                    : reinterpret_cast<CudaStream>(given),
                   {"launch of an illegal address", {}, {}, [] { throw IllegalAddress(); }});
    return CUDA_SUCCESS;
  }
  CudaLaunch launch;
  launch.kernel = found->second.second;
  launch.blocks = x;
  launch.threads = static_cast<int>(threads);
  launch.words = contents->words;
  launch.reads = contents->memory.reads;
  launch.writes = contents->memory.writes;
  launch.atomics = contents->memory.atomics;
  m.gpu.kernels().launch(launch, reinterpret_cast<CudaStream>(stream));
  return CUDA_SUCCESS;
}

}  // namespace tessera::test::rules
