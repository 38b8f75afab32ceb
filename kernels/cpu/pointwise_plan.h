// The decisions about a fused pointwise step when it is bound, and the stages that make them, one
// file each. A stage reads what earlier stages filled in. The interpreter (pointwise.h) follows the
// plan without changing it.
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

/// The shape of a block: rows of n elements.
struct Extent {
  int64_t rows = 1, n = 1;
  int64_t elements() const { return rows * n; }
};

/// An affine operand of the nest, restricted to the block: strides along the row and between rows.
struct BlockStrides {
  int operand = -1;  ///< index in the nest
  int64_t inner = 0, outer = 0;
  bool dense(const Extent& e) const { return inner == 1 && (e.rows == 1 || outer == e.n); }
};

/// How a register's values vary in a block: by element; by row only (in a step with row
/// instructions); or not at all (which can be read as either).
enum class Broadcast : uint8_t { none, along_row, everywhere };

/// (t + summand) * factor, or (t - summand) * factor: registers of one number per row or block; -1:
/// none.
struct Affine {
  int summand = -1, factor = -1;
  bool negative = false;
  bool any() const { return summand >= 0 || factor >= 0; }
};

/// Registers that are read; -1: none.
using Reads = std::array<int, 9>;

/// The registers of a ChainShape.
struct Chain {
  ChainShape shape;
  int x = -1, y = -1, z = -1;
  Affine before, after;
  int y_factor = -1, z_factor = -1;
  std::vector<int> taken;  ///< instructions computed inside the chain
  bool by_rows = false;    ///< rows of a block differ: a sum, or numbers per row
  ChainFn fn = nullptr;
  Reads operands() const {
    return {x,           y, z, before.summand, y_factor, before.factor, z_factor, after.summand,
            after.factor};
  }
};

/// An instruction, and how its register is computed. Grouped by the stage that sets the fields.
struct BoundInstr {
  Instr instr;
  // bind_operands
  BlockStrides strides;            ///< for a positional instruction
  const TensorArg* arg = nullptr;  ///< load
  bool alias = false;              ///< its register is that of its operand
  // plan_broadcasts
  Broadcast broadcast = Broadcast::none;
  int by_row = -1;      ///< the operand that `fn` reads as one number per row; -1: none
  bool spread = false;  ///< varies by row but is read by element: every number is repeated
  int position = -1;  ///< `equal` of `by_row` and this index along the row: true at most once a row
  // join_chains
  std::optional<Chain> chain;  ///< if set, computed by this chain
  bool unused = false;         ///< computed inside its readers
  // plan_outputs
  bool copied = false;   ///< load whose address an output overlaps while another output reads it
  bool fetches = false;  ///< slow enough to hide the prefetch of the next block
  int output = -1;       ///< the output in whose memory the result is computed; -1: none
  bool keeps = false;    ///< a `where` in place: what it does not select stays as it is
  // choose_loops
  BlockFn fn = nullptr;
  RowFn row_fn = nullptr;
};

/// The registers that an instruction reads.
Reads reads_of(const BoundInstr& op);

struct Output {
  int reg = -1;
  BlockStrides strides;
  int read_to = -1;     ///< if direct: the last instruction that reads an input at its address
  bool direct = false;  ///< written by its instruction, not copied from a register
  bool stream = false;  ///< non-temporal stores
  bool once_a_row = false;
};

/// Offsets of registers in the kernel's memory, in bytes.
struct RegisterLayout {
  std::vector<int64_t> at;      ///< by instruction
  std::vector<int64_t> spread;  ///< by instruction: copy repeated along rows; -1: none
  int64_t scratch = 0;          ///< one extra register
  int64_t bytes = 0;
};

/// A pass over the pieces of a long row.
struct RowPass {
  std::vector<int> once;    ///< instructions that run before it, once: numbers of the row
  std::vector<int> pieces;  ///< those that every piece runs
  bool stores = false;      ///< every piece is stored
};

struct PointwisePlan {
  // bind_operands
  Nest nest;                    ///< outputs first
  std::vector<int64_t> starts;  ///< by operand of the nest, in elements
  int row = -1;  ///< the dim of the row instructions (the last of the nest); -1: none
  Extent block;
  int64_t capacity = 0;  ///< elements per register
  std::vector<BoundInstr> code;
  std::vector<Output> outputs;
  // plan_row_passes
  std::vector<RowPass> passes;  ///< empty: a block has whole rows
  // plan_outputs
  std::vector<int> fetched;  ///< loads whose next block is prefetched
  // allocate_registers
  RegisterLayout registers;
  // choose_loops
  std::vector<int> order;  ///< the instructions that every block runs

  /// True if blocks are pieces of rows of the row instructions.
  bool cuts_rows() const { return row >= 0 && block.n < nest.sizes.back(); }
  /// True if an output has one number per row, which is stored when the row is done.
  bool stored_last(const Output& out) const {
    return out.strides.inner == 0 &&
           code[static_cast<size_t>(out.reg)].broadcast != Broadcast::none;
  }

  /// Notes that a reader needs every element of the register.
  void need_elements(int reg) {
    if (reg >= 0 && code[static_cast<size_t>(reg)].broadcast == Broadcast::along_row)
      code[static_cast<size_t>(reg)].spread = true;
  }
};

/// With this many loads, blocks are smaller and prefetched.
constexpr int64_t kManyArrays = 4;
/// Extra elements of a register: random numbers start up to 3 elements early and are made 64 at a
/// time.
constexpr int64_t kSlack = 64;

/// The sum over operands of the bytes from first to last element.
int64_t operand_bytes(const KernelArgs& args);

/// Runs all stages in order. `args` must outlive the plan. A step without elements stops after the
/// first stage.
PointwisePlan plan_pointwise(const KernelArgs& args, const BlockOps& ops);

/// Stage 1: iteration space, operands, aliases and blocks.
PointwisePlan bind_operands(const KernelArgs& args);
/// Stage 2: which registers hold one number, or one per row, and which of these must be repeated;
/// which comparisons are of a position and a number of the row.
void plan_broadcasts(PointwisePlan& plan, const BlockOps& ops);
/// Stage 3: instructions that run as chains.
void join_chains(PointwisePlan& plan, const BlockOps& ops);
/// Stage 4: the passes over rows that are longer than a block.
void plan_row_passes(PointwisePlan& plan);
/// Stage 5: how outputs are stored, and which loads are prefetched.
void plan_outputs(PointwisePlan& plan, const KernelArgs& args);
/// Stage 6: memory of all registers.
void allocate_registers(PointwisePlan& plan, const KernelArgs& args);
/// By register: the last instruction that reads it; the end for outputs.
std::vector<int> last_reads(const PointwisePlan& plan);
/// Stage 7: the loop of every instruction. Throws unsupported if there is none for its dtype.
void choose_loops(PointwisePlan& plan, const KernelArgs& args, const BlockOps& ops);

}  // namespace tessera::cpu
