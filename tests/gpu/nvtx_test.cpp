// Ranges by NVTX reach a profiler that is attached as NVIDIA's are.
#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "support/catch.h"

namespace tessera::test {

namespace TESSERA_FILE {

template <class F>
F function(void* library, const char* name) {
  REQUIRE(library != nullptr);
  return reinterpret_cast<F>(dlsym(library, name));
}

TEST_CASE("a range is shown by an attached profiler", "[cuda]") {
  setenv("NVTX_INJECTION64_PATH", TESSERA_NVTX_LISTENER, 1);
  void* cuda = dlopen(TESSERA_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  const auto show = function<bool (*)(const char*)>(cuda, "tessera_cuda_show_range");
  const bool shown = show("matmul mlp.up (model.cpp:41)");
  unsetenv("NVTX_INJECTION64_PATH");
  CHECK(shown);
  void* listener = dlopen(TESSERA_NVTX_LISTENER, RTLD_NOW | RTLD_LOCAL);
  const std::string notes = function<const char* (*)()>(listener, "listener_notes")();
  CHECK(notes == "domain tessera\npush matmul mlp.up (model.cpp:41)\npop\n");
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
