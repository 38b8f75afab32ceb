// Elements of floating dtypes, from one to another.
#pragma once

#include <cstdint>

#include "tessera/dtype.h"

namespace tessera {

/// Whether convert_elements() knows it: float32, bfloat16, float16, float64.
bool is_weight_dtype(DType dtype);

/// to[places[i]] = from[i] for `count` elements; without places to[i] = from[i]. Rounds to nearest
/// even. Equal dtypes are copied bit by bit.
void convert_elements(const void* from, DType from_dtype, void* to, DType to_dtype,
                      const int64_t* places, int64_t count);

}  // namespace tessera
