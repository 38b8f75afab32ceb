// The table of ATen ops: rows by kind, one file each.
#pragma once

#include <array>
#include <span>

#include "pytorch/call.h"

namespace tessera::pytorch {

std::span<const Row> pointwise_rows();
std::span<const Row> shape_rows();
std::span<const Row> product_rows();
std::span<const Row> layer_rows();
std::span<const Row> reduction_rows();
std::span<const Row> index_rows();

/// All of them.
std::array<std::span<const Row>, 6> all_rows();

/// The dtype that comparisons and other ops of two operands compute in.
DType common_dtype(const Value& a, const Value& b);

}  // namespace tessera::pytorch
