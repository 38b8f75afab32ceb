// Exchange of buffers with DLPack users (NumPy, PyTorch, JAX, CuPy, ...) without their libraries.
// Not part of tessera.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/array.h"
#include "tessera/dlpack_structs.h"
#include "tessera/error.h"
#include "tessera/session.h"

namespace tessera {

namespace dlpack_detail {

/// What a capsule made by Tessera owns.
struct Holder {
  DLManagedTensor managed = {};
  std::vector<int64_t> shape, strides;
  Array array;
  std::shared_ptr<const void> owner;
};

inline DLDataType type_of(DType dtype) {
  const auto bits = static_cast<uint8_t>(8 * size_of(dtype));
  switch (dtype) {
    case DType::float32:
    case DType::float64:
    case DType::float16:
      return {kDLFloat, bits, 1};
    case DType::bfloat16:
      return {kDLBfloat, bits, 1};
    case DType::int32:
    case DType::int64:
      return {kDLInt, bits, 1};
    case DType::uint8:
      return {kDLUInt, bits, 1};
    case DType::bool_:
      return {kDLBool, bits, 1};
  }
  return {};
}

inline DType dtype_of(const DLDataType& type) {
  for (DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::int32, DType::int64,
                      DType::uint8, DType::bool_, DType::float16}) {
    const DLDataType own = type_of(dtype);
    if (own.code == type.code && own.bits == type.bits && own.lanes == type.lanes) return dtype;
  }
  throw Error(ErrorKind::unsupported,
              "[from_dlpack] elements of type code " + std::to_string(type.code) + " with " +
                  std::to_string(type.bits) + " bits and " + std::to_string(type.lanes) +
                  " lanes have no counterpart; convert them to float32, float64, bfloat16, "
                  "float16, int32, int64, uint8 or bool first");
}

inline DLManagedTensor* publish(std::unique_ptr<Holder> holder, void* data, DType dtype) {
  DLManagedTensor& managed = holder->managed;
  managed.dl_tensor.data = data;
  managed.dl_tensor.device = {kDLCPU, 0};
  managed.dl_tensor.ndim = static_cast<int32_t>(holder->shape.size());
  managed.dl_tensor.dtype = type_of(dtype);
  managed.dl_tensor.shape = holder->shape.data();
  managed.dl_tensor.strides = holder->strides.data();
  managed.manager_ctx = holder.get();
  managed.deleter = [](DLManagedTensor* self) { delete static_cast<Holder*>(self->manager_ctx); };
  return &holder.release()->managed;
}

}  // namespace dlpack_detail

/// A capsule that owns `array`. Nothing is copied if the array is moved in. The receiver calls
/// `deleter`.
inline DLManagedTensor* to_dlpack(Array array) {
  auto holder = std::make_unique<dlpack_detail::Holder>();
  holder->array = std::move(array);
  holder->shape = holder->array.sizes;
  holder->strides.resize(holder->shape.size());
  int64_t stride = 1;
  for (size_t d = holder->shape.size(); d-- > 0; stride *= holder->shape[d])
    holder->strides[d] = stride;
  void* data = holder->array.bytes.data();
  const DType dtype = holder->array.dtype;
  return dlpack_detail::publish(std::move(holder), data, dtype);
}

/// A capsule that refers to a slice in place, without its padding. It keeps `owner` alive, which
/// should be the Session of the slice; if `owner` is empty, the caller must keep the Session alive.
/// Later runs are visible through the capsule. The receiver calls `deleter`.
inline DLManagedTensor* to_dlpack(const Slice& slice, std::shared_ptr<const void> owner) {
  auto holder = std::make_unique<dlpack_detail::Holder>();
  holder->shape = slice.valid;
  holder->strides = slice.strides;
  holder->owner = std::move(owner);
  return dlpack_detail::publish(std::move(holder), slice.data, slice.dtype);
}

/// The tensor as an argument for Session::feed(), in place, with any strides; valid as long as the
/// tensor. Throws unsupported for device memory and for an element type that Tessera lacks, and
/// usage errors for a negative ndim and a missing shape.
inline ArrayView from_dlpack(const DLTensor& tensor) {
  const int device = static_cast<int>(tensor.device.device_type);
  if (device != kDLCPU && device != 3)  // 3: host memory pinned for CUDA
    throw Error(ErrorKind::unsupported, "[from_dlpack] the tensor lies on device " +
                                            std::to_string(tensor.device.device_id) + " of type " +
                                            std::to_string(device) +
                                            "; copy it to host memory (type 1) first");
  if (tensor.ndim < 0 || (tensor.ndim > 0 && tensor.shape == nullptr))
    throw Error(ErrorKind::usage, "[from_dlpack] the tensor has ndim " +
                                      std::to_string(tensor.ndim) +
                                      (tensor.ndim < 0 ? "; give the number of its dims, 0 or more"
                                                       : " and its shape is NULL; give its sizes"));
  ArrayView view;
  view.dtype = dlpack_detail::dtype_of(tensor.dtype);
  view.data = static_cast<const std::byte*>(tensor.data) + tensor.byte_offset;
  view.sizes.assign(tensor.shape, tensor.shape + tensor.ndim);
  if (tensor.strides != nullptr) view.strides.assign(tensor.strides, tensor.strides + tensor.ndim);
  return view;
}

/// Feeds a received capsule (DLManagedTensor or DLManagedTensorVersioned) with Session::feed(),
/// then calls its deleter, also if feed() throws. Local.
template <class Managed>
void feed_dlpack(Session& session, const std::string& input, Managed* capsule) {
  const auto release = [](Managed* c) {
    if (c->deleter != nullptr) c->deleter(c);
  };
  const std::unique_ptr<Managed, decltype(release)> owned(capsule, release);
  session.feed(input, from_dlpack(owned->dl_tensor));
}

}  // namespace tessera
