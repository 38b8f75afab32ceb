// What is decided of a fused pointwise step when it is bound, and the stages that decide it, a file
// each. A stage reads what those before it filled in. The interpreter (pointwise.h) follows the
// plan and changes nothing in it.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "kernels/common/nest.h"
#include "kernels/common/types.h"
#include "kernels/cpu/pointwise_ops.h"

namespace tessera::cpu {

using namespace kernels;

inline DType stored_as(DType t) {
  if (is_narrow(t)) return DType::float32;
  return t == DType::bool_ ? DType::uint8 : t;
}

/// Calls body(T{}) with the C++ type of registers of dtype `t`.
template <class Body>
void with_type(DType t, Body&& body) {
  switch (stored_as(t)) {
    case DType::float32:
      return body(float{});
    case DType::float64:
      return body(double{});
    case DType::int64:
      return body(int64_t{});
    case DType::int32:
      return body(int32_t{});
    default:
      return body(uint8_t{});
  }
}

/// What a block is: rows of n elements.
struct Extent {
  int64_t rows = 1, n = 1;
  int64_t elements() const { return rows * n; }
};

/// An affine operand of the nest, reduced to the block: strides along the row and between rows.
struct BlockStrides {
  int operand = -1;  ///< of the nest
  int64_t inner = 0, outer = 0;
  bool dense(const Extent& e) const { return inner == 1 && (e.rows == 1 || outer == e.n); }
};

/// What a register holds of a block: every element; in a step with row instructions perhaps one
/// number for each row; or one number for all (which serves as either).
enum class Broadcast : uint8_t { none, along_row, everywhere };

/// t + summand, or t - summand, times factor: registers that are no array, or -1.
struct Affine {
  int summand = -1, factor = -1;
  bool negative = false;
  bool any() const { return summand >= 0 || factor >= 0; }
};

/// Registers that are read, or -1.
using Reads = std::array<int, 9>;

/// The registers of a ChainShape.
struct Chain {
  ChainShape shape;
  int x = -1, y = -1, z = -1;
  Affine before, after;
  int y_factor = -1, z_factor = -1;
  std::vector<int> taken;  ///< instructions whose results only the chain knows
  bool by_rows = false;    ///< not all elements of a block are alike
  ChainFn fn = nullptr;
  Reads operands() const {
    return {x,           y, z, before.summand, y_factor, before.factor, z_factor, after.summand,
            after.factor};
  }
};

/// An instruction, and how its register is computed.
struct BoundInstr {
  Instr instr;
  // bind_operands
  BlockStrides strides;            ///< of a positional one
  const TensorArg* arg = nullptr;  ///< load
  bool alias = false;              ///< its register is its operand's
  // plan_broadcasts
  Broadcast broadcast = Broadcast::none;
  int by_row = -1;      ///< an operand that `fn` takes as a number a row
  bool spread = false;  ///< along the row, and read by element: every number is repeated
  // join_chains
  std::optional<Chain> chain;  ///< computed so instead
  bool unused = false;         ///< its readers are chains that compute it themselves
  // plan_outputs
  bool copied = false;   ///< load: an output is stored at its place, and another reads it
  bool fetches = false;  ///< computes long enough to hide that the next block is fetched
  int output = -1;       ///< the output in whose memory the result lies, or -1
  // choose_loops
  BlockFn fn = nullptr;
  RowFn row_fn = nullptr;
};

/// The registers that an instruction reads.
Reads reads_of(const BoundInstr& op);

struct Output {
  int reg = -1;
  BlockStrides strides;
  int read_to = -1;     ///< if direct: the last instruction that reads an input at its place
  bool direct = false;  ///< written by its instruction, not from a register
  bool stream = false;  ///< past the caches: the step touches more than they hold
  bool once_a_row = false;
};

/// Where registers lie in the kernel's memory, in bytes.
struct RegisterLayout {
  std::vector<int64_t> at;      ///< one for each instruction
  std::vector<int64_t> spread;  ///< of those that are BoundInstr::spread; else -1
  int64_t scratch = 0;          ///< one register more
  int64_t bytes = 0;
};

struct PointwisePlan {
  // bind_operands
  Nest nest;                    ///< outputs first
  std::vector<int64_t> starts;  ///< of its operands, in elements
  int row = -1;                 ///< the dim of the row instructions, which is the nest's last one
  Extent block;
  int64_t capacity = 0;  ///< elements of a register
  std::vector<BoundInstr> code;
  std::vector<Output> outputs;
  // plan_outputs
  std::vector<int> fetched;  ///< loads whose next block is fetched meanwhile
  // allocate_registers
  RegisterLayout registers;
  // choose_loops
  std::vector<int> order;  ///< the instructions that every block runs

  /// A reader wants every element of the register.
  void need_elements(int reg) {
    if (reg >= 0 && code[static_cast<size_t>(reg)].broadcast == Broadcast::along_row)
      code[static_cast<size_t>(reg)].spread = true;
  }
};

/// Loads that make a step one of many arrays: blocks are smaller, and fetched ahead.
constexpr int64_t kManyArrays = 4;
/// Elements that a register has beyond its block: random numbers start up to 3 elements early and
/// are made 64 at a time.
constexpr int64_t kSlack = 64;

/// From the first to the last byte of every operand, summed.
int64_t operand_bytes(const KernelArgs& args);

/// All stages, in order. `args` outlives the plan. A step without elements stops after the first.
PointwisePlan plan_pointwise(const KernelArgs& args, const BlockOps& ops);

/// The iteration space, its operands, aliases and blocks.
PointwisePlan bind_operands(const KernelArgs& args);
/// Which registers hold one number, or one a row, and which of these must be repeated.
void plan_broadcasts(PointwisePlan& plan, const BlockOps& ops);
/// Instructions that run as chains.
void join_chains(PointwisePlan& plan, const BlockOps& ops);
/// How outputs are stored, and which loads are fetched ahead.
void plan_outputs(PointwisePlan& plan, const KernelArgs& args);
/// Memory for all registers.
void allocate_registers(PointwisePlan& plan, const KernelArgs& args);
/// The last instruction that reads each register; outputs are read at the end.
std::vector<int> last_reads(const PointwisePlan& plan);
/// The loop of every instruction. Throws unsupported where there is none for its dtype.
void choose_loops(PointwisePlan& plan, const KernelArgs& args, const BlockOps& ops);

}  // namespace tessera::cpu
