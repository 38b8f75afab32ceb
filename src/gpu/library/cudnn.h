// cuDNN, which is large and opened when it is first asked for.
#pragma once

#include <cudnn.h>

#include <map>
#include <string>

#include "gpu/library/shared_library.h"

namespace tessera::cuda {

/// The functions of cuDNN that are used, and a handle a GPU.
struct Cudnn {
  cuda::Library dnn{{"libcudnn.so." TESSERA_TEXT(CUDNN_MAJOR), "libcudnn.so"}};
#define TESSERA_MEMBER(name) decltype(&::name) name##_ = nullptr;
#include "gpu/library/cudnn.inc"
#undef TESSERA_MEMBER
  std::map<int, cudnnHandle_t> handles;  ///< by GPU
  std::string why_not;                   ///< empty: there it is

  Cudnn();
  /// Made when it is first asked for.
  cudnnHandle_t handle(int gpu);
  /// What the library says of a call that failed.
  std::string error(cudnnStatus_t status) const;
  void check(cudnnStatus_t status, const char* call, const char* file, int line) const;
};

}  // namespace tessera::cuda

/// Calls a function of `lib`, a Cudnn, and checks it.
#define TESSERA_DNN(lib, name) \
  [&](auto... args) { (lib).check((lib).name##_(args...), #name, __FILE__, __LINE__); }
