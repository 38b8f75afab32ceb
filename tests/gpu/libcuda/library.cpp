// A driver without a GPU, as much as cuDNN needs to compile kernels for a GPU that it was only
// told about: what it compiled is taken and thrown away. What it looks up besides is there, and
// fails as in NVIDIA's own stub of this library.
#include <cstdlib>

namespace {
char loaded = 0;
constexpr int kStubLibrary = 34;
}  // namespace

extern "C" {

int cuLibraryLoadData(void** library, const void*, void*, void*, unsigned, void*, void*, unsigned) {
  *library = &loaded;
  return 0;
}
int cuLibraryGetKernel(void** kernel, void* library, const char*) {
  *kernel = library;
  return 0;
}
int cuLibraryUnload(void*) { return 0; }
int cuKernelSetAttribute(int, int, void*, int) { return 0; }
int cuInit(unsigned) { return kStubLibrary; }
int cuDeviceGetCount(int* count) {
  *count = 0;
  return kStubLibrary;
}
/// TESSERA_STUB_DRIVER, or 13000.
int cuDriverGetVersion(int* version) {
  const char* given = std::getenv("TESSERA_STUB_DRIVER");
  *version = given == nullptr ? 13000 : std::atoi(given);
  return 0;
}
int cuGetErrorName(int, const char** name) {
  *name = "CUDA_ERROR_STUB_LIBRARY";
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "there is no GPU here";
  return 0;
}

#define TESSERA_FAILS(name) \
  int name() { return kStubLibrary; }
TESSERA_FAILS(cuCtxGetCurrent)
TESSERA_FAILS(cuCtxGetLimit)
TESSERA_FAILS(cuCtxPopCurrent)
TESSERA_FAILS(cuCtxPushCurrent)
TESSERA_FAILS(cuDeviceGet)
TESSERA_FAILS(cuKernelGetAttribute)
TESSERA_FAILS(cuLaunchCooperativeKernel)
TESSERA_FAILS(cuLaunchKernel)
TESSERA_FAILS(cuLaunchKernelEx)
TESSERA_FAILS(cuLibraryLoadFromFile)
TESSERA_FAILS(cuLinkAddData)
TESSERA_FAILS(cuLinkComplete)
TESSERA_FAILS(cuLinkCreate)
TESSERA_FAILS(cuLinkDestroy)
TESSERA_FAILS(cuOccupancyMaxPotentialClusterSize)
TESSERA_FAILS(cuStreamGetCtx)
}
