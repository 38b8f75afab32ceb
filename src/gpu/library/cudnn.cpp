#include "gpu/library/cudnn.h"

namespace tessera::cuda {

Cudnn::Cudnn() {
  if (!dnn.is_open()) {
    why_not = "cuDNN is missing: " + dnn.why_not();
    return;
  }
  try {
#define TESSERA_MEMBER(name) dnn.get(name##_, #name);
#include "gpu/library/cudnn.inc"
#undef TESSERA_MEMBER
    constexpr size_t kOldest = 90000;
    if (const size_t version = cudnnGetVersion_(); version < kOldest)
      why_not = fmt::format("this cuDNN is {}.{}.{}, and 9.0 or newer is needed", version / 1000,
                            version / 100 % 10, version % 100);
  } catch (const Error& e) {
    why_not = fmt::format("this cuDNN is too old: {}; 9.0 or newer is needed", e.what());
  }
}

cudnnHandle_t Cudnn::handle(int gpu) {
  cudnnHandle_t& handle = handles[gpu];
  if (handle == nullptr) TESSERA_DNN(*this, cudnnCreate)(&handle);
  return handle;
}

std::string Cudnn::error(cudnnStatus_t status) const {
  const std::string error = cudnnGetErrorString_(status);
  char more[1000] = {};
  cudnnGetLastErrorString_(more, sizeof more);
  std::string text = more;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.empty() ? error : error + ", " + text;
}

void Cudnn::check(cudnnStatus_t status, const char* call, const char* file, int line) const {
  if (status == CUDNN_STATUS_SUCCESS) return;
  check_call(false, call, error(status) + "; TESSERA_CUDNN=off leaves it to Tessera's own kernels",
             file, line);
}

}  // namespace tessera::cuda
