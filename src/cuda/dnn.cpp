#include "cuda/dnn.h"

namespace tessera::cuda {

Dnn::Dnn() {
  if (!dnn.is_open()) {
    why_not = "cuDNN is missing: " + dnn.why_not();
    return;
  }
  try {
#define TESSERA_MEMBER(name) dnn.get(name##_, #name);
#include "cuda/dnn.inc"
#undef TESSERA_MEMBER
  } catch (const Error& e) {
    why_not = e.what();
  }
}

cudnnHandle_t Dnn::handle(int card) {
  cudnnHandle_t& handle = handles[card];
  if (handle == nullptr) TESSERA_DNN(*this, cudnnCreate)(&handle);
  return handle;
}

std::string Dnn::error(cudnnStatus_t status) const {
  const std::string error = cudnnGetErrorString_(status);
  char more[1000] = {};
  cudnnGetLastErrorString_(more, sizeof more);
  std::string text = more;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.empty() ? error : error + ", " + text;
}

void Dnn::check(cudnnStatus_t status, const char* call, const char* file, int line) const {
  if (status == CUDNN_STATUS_SUCCESS) return;
  check_call(false, call, error(status) + "; TESSERA_CUDNN=off leaves it to Tessera's own kernels",
             file, line);
}

}  // namespace tessera::cuda
