// The enumerators of specs as texts, in order.
#pragma once

#include <array>

#include "program/specs.h"

namespace tessera {

constexpr auto names_of(matmul_kinds::DimKind) {
  return std::array{"batch", "row", "column", "sum"};
}
constexpr auto names_of(GroupedKind) {
  return std::array{"batch", "position", "inner", "outer", "group"};
}
constexpr auto names_of(conv_kinds::DimKind) {
  return std::array{"group", "images", "inputs", "outputs"};
}
constexpr auto names_of(conv_kinds::Result) { return std::array{"y", "x", "filter"}; }
constexpr auto names_of(OutOfRange) {
  using enum OutOfRange;
  return std::array{to_string(error), to_string(zero), to_string(drop), to_string(clamp)};
}

}  // namespace tessera
