// The instructions of fused pointwise steps and their properties: pointwise_table.inc as an enum
// and an array. Passes and kernels query properties and do not list instructions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera {

enum class PointwiseOp : uint8_t {
#define UNARY(id, ...) id,
#define BINARY(id, ...) id,
#define INSTRUCTION(id, ...) id,
#include "program/pointwise_table.inc"
};

/// The dtype of the operands (one for all) and of the result.
enum class DtypeRule : uint8_t {
  own,       ///< special rule
  floating,  ///< floating operands, same result
  number,    ///< any dtype but bool, same result
  any,       ///< any dtype, same result
  test,      ///< any dtype, bool result
  logical,   ///< bool operands, bool result
};

/// Relative time per element.
enum class CostClass : uint8_t {
  free,       ///< constant for all elements
  cheap,      ///< about as long as an addition
  slow,       ///< long enough to hide operand loads
  expensive,  ///< many times as long as an addition
};

enum InstructionProperty : unsigned {
  kNone = 0,
  kPositional = 1,  ///< has its own strides along the output's dims
  kByLayout = 2,    ///< depends on the rank's slice, not only on the operands
  kStill = 4,       ///< the same for all elements
  kConverts = 8,    ///< the operand's value in the result's dtype
  kReducesRow = 16,
};

struct InstructionInfo {
  const char* name;
  const char* formula;  ///< the struct in namespace formula; "" if none
  int operands;
  DtypeRule dtypes;
  CostClass cost;
  unsigned properties;
};

inline constexpr InstructionInfo kInstructions[] = {
#define UNARY(id, Formula, dtypes, cost, ...) \
  {#id, #Formula, 1, DtypeRule::dtypes, CostClass::cost, kNone},
#define BINARY(id, Formula, dtypes, cost, ...) \
  {#id, #Formula, 2, DtypeRule::dtypes, CostClass::cost, kNone},
#define INSTRUCTION(id, operands, cost, properties) \
  {#id, "", operands, DtypeRule::own, CostClass::cost, properties},
#include "program/pointwise_table.inc"
};

constexpr const InstructionInfo& info_of(PointwiseOp code) {
  return kInstructions[static_cast<size_t>(code)];
}
constexpr bool is_positional(PointwiseOp code) {
  return (info_of(code).properties & kPositional) != 0;
}
constexpr bool changes_with_layout(PointwiseOp code) {
  return (info_of(code).properties & kByLayout) != 0;
}
constexpr bool is_still(PointwiseOp code) { return (info_of(code).properties & kStill) != 0; }
constexpr bool converts(PointwiseOp code) { return (info_of(code).properties & kConverts) != 0; }
constexpr bool reduces_row(PointwiseOp code) {
  return (info_of(code).properties & kReducesRow) != 0;
}
/// True if the result is bool for all operand dtypes.
constexpr bool is_test(DtypeRule rule) {
  return rule == DtypeRule::test || rule == DtypeRule::logical;
}

}  // namespace tessera
