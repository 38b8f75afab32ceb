// A project whose own copy of DLPack's header comes first keeps it.
#define DLPACK_DLPACK_H_
#include <cstdint>

extern "C" {
typedef enum : int32_t { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3 } DLDeviceType;
typedef struct {
  DLDeviceType device_type;
  int32_t device_id;
} DLDevice;
typedef enum { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLBool = 6 } DLDataTypeCode;
typedef struct {
  uint8_t code, bits;
  uint16_t lanes;
} DLDataType;
typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} DLTensor;
typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensor* self);
} DLManagedTensor;
}

#include "support/catch.h"
#include "tessera/interop/dlpack.h"

TEST_CASE("a project keeps its own DLPack header", "[dlpack][fast]") {
  static_assert(sizeof(DLTensor) == 48 && sizeof(DLManagedTensor) == 64);
  tessera::Array x(tessera::DType::int64, {"a"}, {4});
  x.data<int64_t>()[3] = 7;
  DLManagedTensor* capsule = tessera::to_dlpack(x);
  const tessera::ArrayView view = tessera::from_dlpack(capsule->dl_tensor);
  CHECK(static_cast<const int64_t*>(view.data)[3] == 7);
  CHECK(view.data != x.bytes.data());
  capsule->deleter(capsule);
}
