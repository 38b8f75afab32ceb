// Elements of stored tensors. They lie as a tensor of PyTorch does: with strides, from an offset.
#pragma once

#include <string>

#include "pytorch/program.h"
#include "tessera/array.h"
#include "tessera/session.h"

namespace tessera::pytorch {

/// The whole tensor, row-major; integers but bytes as int32. Throws io errors for missing or too
/// few bytes, a usage error for a whole number beyond int32.
Array read_array(const Archive& archive, const std::string& name, const StoredTensor& stored);
/// The dtype in which a state_dict is written.
DType exported_dtype(ScalarType type);
/// The same elements in another dtype.
Array converted(const Array& array, DType dtype);
int64_t elements_of(const TensorMeta& meta);
/// Puts the elements of a part in row-major order where they lie in the whole (Part::place). Throws
/// a usage error for another number of elements.
void scatter(const Array& part, const TensorMeta& place, Array& whole);
/// The inverse.
void gather(const Array& whole, const TensorMeta& place, Array& part);
/// Fills one rank's slice of it, reading only that. `shape`: the dims of the model's tensor, whose
/// elements in row-major order are those of the stored one.
void read_slice(const Archive& archive, const std::string& name, const StoredTensor& stored,
                const Slice& slice, const std::vector<int64_t>& shape);

}  // namespace tessera::pytorch
