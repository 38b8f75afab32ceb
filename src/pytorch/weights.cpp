#include "pytorch/weights.h"

#include <algorithm>
#include <cstring>

#include "base/fail.h"
#include "base/float16.h"

namespace tessera::pytorch {

namespace {

template <class T>
double load(const char* from) {
  T x;
  std::memcpy(&x, from, sizeof x);
  if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) return to_float(x);
  if constexpr (std::is_arithmetic_v<T>) return static_cast<double>(x);
}

double element(const char* from, ScalarType type) {
  switch (type) {
    case ScalarType::uint8:
      return load<uint8_t>(from);
    case ScalarType::int8:
      return load<int8_t>(from);
    case ScalarType::int16:
      return load<int16_t>(from);
    case ScalarType::int32:
      return load<int32_t>(from);
    case ScalarType::int64:
      return load<int64_t>(from);
    case ScalarType::half:
      return load<Float16>(from);
    case ScalarType::float32:
      return load<float>(from);
    case ScalarType::float64:
      return load<double>(from);
    case ScalarType::bool_:
      return load<uint8_t>(from) != 0;
    default:
      return load<BFloat16>(from);
  }
}

void store(double x, DType dtype, void* data, int64_t at) {
  switch (dtype) {
    case DType::float32:
      static_cast<float*>(data)[at] = static_cast<float>(x);
      break;
    case DType::float64:
      static_cast<double*>(data)[at] = x;
      break;
    case DType::bfloat16:
      static_cast<BFloat16*>(data)[at] = to_bfloat16(static_cast<float>(x));
      break;
    case DType::float16:
      static_cast<Float16*>(data)[at] = to_float16(static_cast<float>(x));
      break;
    case DType::int32:
      static_cast<int32_t*>(data)[at] = static_cast<int32_t>(x);
      break;
    case DType::int64:
      static_cast<int64_t*>(data)[at] = static_cast<int64_t>(x);
      break;
    default:
      static_cast<uint8_t*>(data)[at] = static_cast<uint8_t>(x);
  }
}

/// A tensor's bytes, read in spans. A span that was read is kept for the next elements.
class Elements {
 public:
  Elements(const Archive& archive, const std::string& name, const StoredTensor& stored)
      : archive_(archive), name_(name), stored_(stored), item_(bytes_of(stored.meta.type)) {
    if (stored.entry.empty())
      fail(ErrorKind::io, "[pytorch] '{}' has no elements of '{}'", archive.path(), name);
    size_ = archive.size(stored.entry) / item_;
    const TensorMeta& meta = stored.meta;
    int64_t last = meta.offset;
    for (size_t d = 0; d < meta.sizes.size(); ++d) {
      if (meta.sizes[d] < 1 || meta.strides[d] < 0 || meta.sizes[d] > size_)
        refuse(fmt::format("sizes [{}]", fmt::join(meta.sizes, ", ")));
      last += (meta.sizes[d] - 1) * std::min(meta.strides[d], size_);
    }
    if (meta.offset < 0 || last >= size_) refuse(fmt::format("{} elements", last + 1));
  }

  /// Whether elements that follow one another in row-major order do so in the file.
  bool is_row_major() const {
    int64_t inner = 1;
    for (size_t d = stored_.meta.sizes.size(); d-- > 0; inner *= stored_.meta.sizes[d])
      if (stored_.meta.sizes[d] > 1 && stored_.meta.strides[d] != inner) return false;
    return true;
  }

  /// Stores elements [index, index + count) of a row-major tensor; `more` from `index` on will be
  /// asked for next.
  void copy(int64_t index, int64_t count, int64_t more, DType dtype, void* data, int64_t to) {
    const char* const from = bytes_at(stored_.meta.offset + index, count, more);
    if (stored_.meta.type == ScalarType::float32 && dtype == DType::float32) {
      std::memcpy(static_cast<float*>(data) + to, from, static_cast<size_t>(count) * sizeof(float));
      return;
    }
    for (int64_t i = 0; i < count; ++i)
      store(element(from + i * item_, stored_.meta.type), dtype, data, to + i);
  }

  /// Element `index` in row-major order; `more` elements from it on will be asked for next.
  double at(int64_t index, int64_t more) {
    int64_t position = stored_.meta.offset;
    for (size_t d = stored_.meta.sizes.size(); d-- > 0;) {
      position += index % stored_.meta.sizes[d] * stored_.meta.strides[d];
      index /= stored_.meta.sizes[d];
    }
    const double x = element(bytes_at(position, 1, more), stored_.meta.type);
    if (stored_.meta.type == ScalarType::int64 && (x > INT32_MAX || x < INT32_MIN))
      return x > 0 ? INT32_MAX : INT32_MIN;
    return x;
  }

 private:
  /// Element `position` of the file, read with those behind it.
  const char* bytes_at(int64_t position, int64_t count, int64_t more) {
    constexpr int64_t kMost = int64_t{1} << 22;  // elements that are read ahead
    if (position < begin_ || position + count > end_) {
      begin_ = position, end_ = std::min(size_, position + std::max(count, std::min(more, kMost)));
      bytes_.resize(static_cast<size_t>((end_ - begin_) * item_));
      archive_.read(stored_.entry, begin_ * item_, (end_ - begin_) * item_, bytes_.data());
    }
    return bytes_.data() + (position - begin_) * item_;
  }

  [[noreturn]] void refuse(const std::string& needs) const {
    fail(ErrorKind::io, "[pytorch] '{}' is damaged: '{}' has {} elements and says that it has {}",
         archive_.path(), name_, size_, needs);
  }

  const Archive& archive_;
  const std::string& name_;
  const StoredTensor& stored_;
  int64_t item_, size_ = 0, begin_ = 0, end_ = 0;
  std::vector<char> bytes_;
};

}  // namespace

Array read_array(const Archive& archive, const std::string& name, const StoredTensor& stored) {
  Elements elements(archive, name, stored);
  std::vector<std::string> dims;
  for (size_t d = 0; d < stored.meta.sizes.size(); ++d) dims.push_back(fmt::format("dim{}", d));
  Array array(dtype_of(stored.meta.type), dims, stored.meta.sizes);
  for (int64_t i = 0; i < array.elements(); ++i)
    store(elements.at(i, array.elements() - i), array.dtype, array.bytes.data(), i);
  return array;
}

DType exported_dtype(ScalarType type) {
  return type == ScalarType::int64 ? DType::int64 : dtype_of(type);
}

Array converted(const Array& array, DType dtype) {
  if (array.dtype == dtype) return array;
  Array result(dtype, array.dims, array.sizes);
  for (int64_t i = 0; i < array.elements(); ++i) store(array.at(i), dtype, result.bytes.data(), i);
  return result;
}

int64_t elements_of(const TensorMeta& meta) {
  int64_t elements = 1;
  for (const int64_t size : meta.sizes) elements *= size;
  return elements;
}

namespace {

/// f(element of the whole, element of the part), as byte offsets.
template <class F>
void for_each_element(const Array& part, const TensorMeta& place, const Array& whole, F f) {
  TESSERA_REQUIRE(part.elements() == elements_of(place) && part.dtype == whole.dtype,
                  "[pytorch] a part of a parameter has {} elements instead of {}", part.elements(),
                  elements_of(place));
  for (int64_t i = 0; i < part.elements(); ++i) {
    int64_t at = place.offset, rest = i;
    for (size_t d = place.sizes.size(); d-- > 0; rest /= place.sizes[d])
      at += rest % place.sizes[d] * place.strides[d];
    f(static_cast<size_t>(at * size_of(part.dtype)), static_cast<size_t>(i * size_of(part.dtype)));
  }
}

}  // namespace

void scatter(const Array& part, const TensorMeta& place, Array& whole) {
  for_each_element(part, place, whole, [&](size_t to, size_t from) {
    std::memcpy(&whole.bytes[to], &part.bytes[from], static_cast<size_t>(size_of(part.dtype)));
  });
}

void gather(const Array& whole, const TensorMeta& place, Array& part) {
  for_each_element(part, place, whole, [&](size_t from, size_t to) {
    std::memcpy(&part.bytes[to], &whole.bytes[from], static_cast<size_t>(size_of(part.dtype)));
  });
}

void read_slice(const Archive& archive, const std::string& name, const StoredTensor& stored,
                const Slice& slice, const std::vector<int64_t>& shape) {
  Elements elements(archive, name, stored);
  const size_t rank = shape.size();
  std::vector<int64_t> index(rank, 0), weight(rank, 1);
  for (size_t d = rank; d-- > 1;) weight[d - 1] = weight[d] * shape[d];
  if (std::any_of(slice.valid.begin(), slice.valid.end(), [](int64_t n) { return n == 0; })) return;
  // Elements that follow one another in the file: trailing dims that the slice has whole.
  int64_t run = 1;
  for (size_t d = rank; d-- > 0;) {
    run *= slice.valid[d];
    if (slice.valid[d] != shape[d]) break;
  }
  // Rows that lie in one piece in the file and in the slice are copied as such.
  const bool rows = rank > 0 && elements.is_row_major() && slice.strides[rank - 1] == 1;
  const size_t counted = rows ? rank - 1 : rank;
  for (bool more = true; more;) {
    int64_t at = rows ? slice.offset[rank - 1] : 0, to = 0;
    for (size_t d = 0; d < counted; ++d) {
      at += (slice.offset[d] + index[d]) * weight[d];
      to += index[d] * slice.strides[d];
    }
    if (rows) {
      elements.copy(at, slice.valid[rank - 1], run, slice.dtype, slice.data, to);
    } else {
      store(elements.at(at, run), slice.dtype, slice.data, to);
    }
    more = false;
    for (size_t d = counted; d-- > 0 && !more;) {
      more = ++index[d] < slice.valid[d];
      if (!more) index[d] = 0;
    }
  }
}

}  // namespace tessera::pytorch
