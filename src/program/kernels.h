// The kernels of Program steps and what is known of each: kernel_table.inc as an enum and records.
// Passes, prices and reports ask for a property; nobody compares names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera {

enum class KernelKind : uint8_t {
#define KERNEL(id, ...) id,
#include "program/kernel_table.inc"
};

/// What a step's time is computed from, besides the bytes that it touches.
enum class KernelCost : uint8_t {
  rate,       ///< Step::flops, by the machine's rate of the kernel
  pointwise,  ///< the instructions of Step::pointwise
  matmul,     ///< the sizes of a matrix product
};

/// How a step takes pointwise instructions of its neighbours.
enum class Fusion : uint8_t {
  none,
  pointwise,  ///< from before and behind, as one chain
  epilogue,   ///< from behind: applied to what it computes
  prologue,   ///< from before: they compute its operand
};

struct KernelInfo {
  KernelKind kind;
  std::string_view name;
  KernelCost cost = KernelCost::rate;
  /// The kernel whose rate in a machine's profile is this one's, too; none: it has its own.
  KernelKind measured_as = KernelKind::none;
  Fusion fusion = Fusion::none;
  /// An element of a result needs at most the elements of the operands at its own place.
  bool is_elementwise = false;
  bool is_copy = false;      ///< the result is the operand
  bool is_cuttable = false;  ///< along dims of the result, into steps for ranges of them
  bool combines = false;     ///< by Step::combiner
};

const KernelInfo& info_of(KernelKind kind);
/// The kernel called `name`, if there is one: of a machine's profile or a test.
std::optional<KernelKind> find_kernel(std::string_view name);

}  // namespace tessera
