// The kernels of Program steps and their properties: kernel_table.inc as an enum and records.
// Passes, cost model and reports query properties and do not compare names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "program/specs.h"

namespace tessera {

enum class KernelKind : uint8_t {
#define KERNEL(id, ...) id,
#include "program/kernel_table.inc"
};

/// How the cost model prices a step, besides the bytes that it touches.
enum class KernelCost : uint8_t {
  rate,       ///< Step::flops at the machine's rate for the kernel
  pointwise,  ///< the instructions of Step::pointwise
  matmul,     ///< by the sizes of a matmul
  grouped,    ///< by the sizes of the matmul of a mean group
};

/// How pointwise instructions of neighbour steps can be fused into a step.
enum class Fusion : uint8_t {
  none,
  pointwise,  ///< preceding and following ones, into one chain
  epilogue,   ///< following ones, applied to its result
  prologue,   ///< preceding ones, which compute its operand
};

struct KernelInfo {
  KernelKind kind;
  std::string_view name;
  KernelCost cost = KernelCost::rate;
  /// Priced with the rate of this kernel in the machine profile; none: has its own rate.
  KernelKind measured_as = KernelKind::none;
  Fusion fusion = Fusion::none;
  /// An element of a result depends at most on the operands' elements at the same index.
  bool is_elementwise = false;
  bool is_copy = false;        ///< the result is the operand
  bool is_cuttable = false;    ///< can be divided along the result's dims into several steps
  bool combines = false;       ///< uses Step::combiner
  bool takes_rows = false;     ///< operands may be parts of the rows of a wider buffer
  bool sums_in_order = false;  ///< heeds Step::order: strict numerics can have its sums
  /// An empty spec of the type that its steps have.
  StepSpec (*spec)() = [] { return StepSpec(); };
};

const KernelInfo& info_of(KernelKind kind);
/// The kernel called `name` (from a machine profile or a test), if it exists.
std::optional<KernelKind> find_kernel(std::string_view name);

}  // namespace tessera
