// A whole tensor in host memory, row-major.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "tessera/dim.h"
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

  /// From values in row-major order, one for each element; the dtype is that of T (float, double,
  /// int32_t, int64_t, uint8_t, bool): Array::of<float>({Dim("rows", 2)}, {1, 2}). Throws a usage
  /// error for another number of values.
  template <class T>
  static Array of(const Shape& shape, const std::vector<T>& values) {
    Array array = room_for(shape, dtype_of_values<T>(), static_cast<int64_t>(values.size()));
    T* const to = array.data<T>();
    for (size_t i = 0; i < values.size(); ++i) to[i] = values[i];
    return array;
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

 private:
  template <class T>
  static constexpr DType dtype_of_values() {
    if constexpr (std::is_same_v<T, float>) return DType::float32;
    if constexpr (std::is_same_v<T, double>) return DType::float64;
    if constexpr (std::is_same_v<T, int32_t>) return DType::int32;
    if constexpr (std::is_same_v<T, int64_t>) return DType::int64;
    if constexpr (std::is_same_v<T, uint8_t>) return DType::uint8;
    if constexpr (std::is_same_v<T, bool>) return DType::bool_;
  }
  static Array room_for(const Shape& shape, DType dtype, int64_t values);
};

/// A whole tensor in memory that the caller owns. Strides are in elements, of any sign and order;
/// empty means row-major.
struct ArrayView {
  const void* data = nullptr;
  DType dtype = DType::float32;
  std::vector<int64_t> sizes, strides;
};

}  // namespace tessera
