// The block interpreter of fused pointwise steps: see pointwise.cpp for its idea.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "kernels/cpu/nest.h"
#include "kernels/cpu/pointwise_ops.h"
#include "kernels/cpu/types.h"

namespace tessera::cpu {

/// Elements of a block. Of many arrays fewer, so that they stay in the L1 cache with what lies
/// between. Of a step with row instructions more, for each of these is a call for a few numbers;
/// but what comes from memory comes faster in few rows at a time.
constexpr int64_t kBlock = 1024, kManyArrays = 4, kBlockOfMany = 512, kBlockOfRows = 4096,
                  kNearBytes = int64_t{8} << 20;
constexpr int64_t kSlack =
    64;  // random numbers start up to 3 elements early and are made 64 at a time

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

inline bool positional(Code code) {
  return code == Code::load || code == Code::index || code == Code::random || code == Code::mask;
}

/// What a block is: rows of n elements.
struct Extent {
  int64_t rows = 1, n = 1;
  int64_t elements() const { return rows * n; }
};

/// An affine operand of the nest, reduced to the block: strides along the row and between rows.
struct Place {
  int operand = -1;  ///< of the nest
  int64_t inner = 0, outer = 0;
  bool dense(const Extent& e) const { return inner == 1 && (e.rows == 1 || outer == e.n); }
};

/// What a register holds of a block: every element; in a step with row instructions perhaps one
/// number a row; or everywhere the same number (which serves as either).
enum class Spread : uint8_t { full, per_row, uniform };

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

struct Op {
  Instr instr;
  BlockFn fn = nullptr;
  RowFn row_fn = nullptr;
  std::optional<Chain> chain;  ///< computed so instead
  int by_row = -1;             ///< an operand that `fn` takes as a number a row
  bool unused = false;         ///< its readers are chains that compute it themselves
  bool fetches = false;        ///< computes long enough to hide that the next block is fetched
  Spread spread = Spread::full;
  Place place;                     ///< load, index, random, mask
  const TensorArg* arg = nullptr;  ///< load
  bool copied = false;             ///< load: an output is stored at its place, and another reads it
  int output = -1;                 ///< the output in whose memory the result lies, or -1
  bool alias = false;              ///< its register is its operand's
  unsigned char* buffer = nullptr;
  bool needs_full = false;            ///< per row, and read by element
  unsigned char* full = nullptr;      ///< then: every number repeated along its row
  const void* filled_from = nullptr;  ///< broadcast load: what the buffer holds now
  int64_t filled = 0;
};

Reads reads_of(const Op& op);

struct Output {
  int reg = -1;
  Place place;
  int read_to = -1;     ///< if direct: the last instruction that reads an input at its place
  bool direct = false;  ///< written by its instruction, not from a register
  bool stream = false;  ///< past the caches: the step touches more than they hold
  bool once_a_row = false;
};

class Pointwise final : public Kernel {
 public:
  Pointwise(const KernelArgs& args, const BlockOps& ops);
  void run() override;
  /// The instructions that run as chains.
  std::vector<Chain> chains() const;

 private:
  void make_nest_and_ops();
  void find_aliases();
  int64_t operand_bytes() const;
  void choose_block();
  struct Slot;
  std::vector<int> last_reads() const;
  bool find_last_read(Output& out, const TensorArg& target, const std::vector<int>& last) const;
  void find_copied(const std::vector<int>& last);
  void choose_outputs();
  void assign_buffers();
  Slot* find_slot(std::vector<Slot>& slots, int i, int last, int64_t bytes);
  void bind_op(Op& op);
  void find_spreads();
  void need_full(int reg);
  void* place_of(const Op& op) const;
  void join_chains();
  const void* operand(const Op& reader, int reg) const;
  void expand(const Op& op, const void* reg, const Extent& e);
  void store_rows(const Output& out, int number, const Extent& e);
  void refill(bool all);
  void fill_constant(Op& op);

  void advance(int dim, int64_t count) {
    for (size_t k = 0; k < offsets_.size(); ++k) offsets_[k] += nest_.strides[k][dim] * count;
  }

  /// All blocks of the two innermost dims.
  void run_plane();
  void run_block(const Extent& e);
  void run_chain(const Op& op, void* out, const Extent& e, int64_t first = 0) const;
  void compute(const Op& op, void* out, const Extent& e, int64_t first = 0) const;
  void compute_and_fetch(const Op& op, void* out, const Extent& e) const;
  void choose_fetched(int64_t bytes);
  void run_load(Op& op, const void*& reg, const Extent& e);
  void run_index(Op& op, const Extent& e);
  void run_random(Op& op, const void*& reg, const Extent& e);
  void run_mask(Op& op, const void*& reg, const Extent& e);
  void store(const void* from, const Place& place, int number, const Extent& e);

  KernelArgs args_;
  const BlockOps& ops_;
  Nest nest_;
  std::vector<int64_t> offsets_;  ///< of the current block, per operand of the nest
  std::vector<Op> code_;
  std::vector<int> walked_;  ///< the instructions that every block runs, in order
  std::vector<Output> outputs_;
  std::vector<int> fetched_;  ///< loads whose next block is fetched meanwhile
  std::vector<const void*> regs_;
  std::vector<int64_t> values_;  ///< of the step's exprs
  std::vector<unsigned char> memory_;
  unsigned char* scratch_ = nullptr;  ///< one register
  int row_ = -1;                      ///< the dim of the row instructions, the nest's last one
  Extent block_;
  int64_t capacity_ = 0;  ///< elements of a register
};

/// The kernel with the loops of one instruction set: what tests compare.
std::unique_ptr<Kernel> bind_pointwise_with(const KernelArgs& args, const BlockOps& ops);

}  // namespace tessera::cpu
