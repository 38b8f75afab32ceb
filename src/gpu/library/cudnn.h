// cuDNN, which is large and opened at first use.
#pragma once

#include <cudnn.h>

#include <map>
#include <string>

#include "gpu/library/shared_library.h"

namespace tessera::cuda {

/// The cuDNN functions that are used, and one handle per GPU.
struct Cudnn {
  cuda::Library dnn{{"libcudnn.so." TESSERA_TEXT(CUDNN_MAJOR), "libcudnn.so"}};
#define TESSERA_MEMBER(name) decltype(&::name) name##_ = nullptr;
#include "gpu/library/cudnn.inc"
#undef TESSERA_MEMBER
  std::map<int, cudnnHandle_t> handles;  ///< by GPU
  std::string why_not;                   ///< empty: cuDNN is available

  Cudnn();
  /// Created at first use.
  cudnnHandle_t handle(int gpu);
  /// The library's description of a failed call.
  std::string error(cudnnStatus_t status) const;
  void check(cudnnStatus_t status, const char* call, const char* file, int line) const;
};

}  // namespace tessera::cuda

/// Calls a function of `lib`, a Cudnn, and checks its result.
#define TESSERA_DNN(lib, name) \
  [&](auto... args) { (lib).check((lib).name##_(args...), #name, __FILE__, __LINE__); }
