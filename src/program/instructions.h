// The instructions of fused pointwise steps and what is known of each: pointwise_table.inc as an
// enum and an array. Passes and kernels ask for a property; nobody keeps a list of instructions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera {

enum class Code : uint8_t {
#define UNARY(id, ...) id,
#define BINARY(id, ...) id,
#define INSTRUCTION(id, ...) id,
#include "program/pointwise_table.inc"
};

/// The dtypes of the operands, which agree, and of the result.
enum class DtypeRule : uint8_t {
  own,       ///< a rule of its own
  floating,  ///< floating, and so is the result
  number,    ///< any but bool, and so is the result
  any,       ///< any, and so is the result
  test,      ///< any; the result is bool
  logical,   ///< bool, and so is the result
};

/// How long an element takes.
enum class CostClass : uint8_t {
  free,       ///< known before the elements are visited
  cheap,      ///< as an addition, or little more
  slow,       ///< long enough to hide that operands are fetched meanwhile
  expensive,  ///< many times as long as an addition
};

enum InstructionProperty : unsigned {
  kNone = 0,
  kPositional = 1,  ///< has strides of its own along the output's dims
  kByLayout = 2,    ///< depends on where the result lies, not on its operands alone
  kStill = 4,       ///< the same for all elements
  kConverts = 8,    ///< the operand's value in the result's dtype
  kReducesRow = 16,
};

struct InstructionInfo {
  const char* name;
  const char* formula;  ///< the struct in namespace formula; "" if it has none of its own
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

constexpr const InstructionInfo& info_of(Code code) {
  return kInstructions[static_cast<size_t>(code)];
}
constexpr bool is_positional(Code code) { return (info_of(code).properties & kPositional) != 0; }
constexpr bool changes_with_layout(Code code) {
  return (info_of(code).properties & kByLayout) != 0;
}
constexpr bool is_still(Code code) { return (info_of(code).properties & kStill) != 0; }
constexpr bool converts(Code code) { return (info_of(code).properties & kConverts) != 0; }
constexpr bool reduces_row(Code code) { return (info_of(code).properties & kReducesRow) != 0; }
/// The result is bool, whatever the operands are.
constexpr bool is_test(DtypeRule rule) {
  return rule == DtypeRule::test || rule == DtypeRule::logical;
}

}  // namespace tessera
