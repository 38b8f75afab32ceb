// A whole tensor in host memory, row-major.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tessera/dtype.h"

namespace tessera {

/// A whole tensor. Owns its elements. `dims` and `sizes` are the dims' names and sizes.
struct Array {
  DType dtype = DType::float32;
  std::vector<std::string> dims;
  std::vector<int64_t> sizes;
  std::vector<std::byte> bytes;

  Array() = default;
  Array(DType dtype, std::vector<std::string> dims, std::vector<int64_t> sizes)
      : dtype(dtype), dims(std::move(dims)), sizes(std::move(sizes)) {
    bytes.resize(static_cast<size_t>(elements() * size_of(dtype)));
  }

  int64_t elements() const {
    int64_t n = 1;
    for (int64_t s : sizes) n *= s;
    return n;
  }
  template <class T>
  T* data() {
    return reinterpret_cast<T*>(bytes.data());
  }
  template <class T>
  const T* data() const {
    return reinterpret_cast<const T*>(bytes.data());
  }
  /// Element i (row-major) as a double, whatever the dtype.
  double at(int64_t i) const;
};

/// A whole tensor in memory that the caller owns. Strides are in elements, of any sign and order;
/// empty means row-major.
struct ArrayView {
  const void* data = nullptr;
  DType dtype = DType::float32;
  std::vector<int64_t> sizes, strides;
};

}  // namespace tessera
