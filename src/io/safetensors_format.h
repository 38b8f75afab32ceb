// Constants shared by the reader and writer of safetensors files.
#pragma once

#include <string>
#include <string_view>

#include "tessera/safetensors.h"

namespace tessera::safetensors {

constexpr int64_t kMaxHeader = 100'000'000;
constexpr const char* kMetadata = "__metadata__";

struct TypeName {
  DType dtype;
  std::string_view name;
};
constexpr TypeName kTypes[] = {{DType::float32, "F32"},   {DType::float64, "F64"},
                               {DType::bfloat16, "BF16"}, {DType::int32, "I32"},
                               {DType::int64, "I64"},     {DType::uint8, "U8"},
                               {DType::bool_, "BOOL"},    {DType::float16, "F16"}};

inline std::string type_names() {
  std::string all;
  for (const TypeName& t : kTypes) all.append(all.empty() ? "" : " ").append(t.name);
  return all;
}

/// The number of bytes of a tensor (sizes >= 0), or -1 if it does not fit into 63 bits.
inline int64_t byte_count(const TensorInfo& info) {
  int64_t bytes = size_of(info.dtype);
  for (int64_t size : info.sizes) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return -1;
  }
  return bytes;
}

}  // namespace tessera::safetensors
