// The block interpreter of fused pointwise steps; pointwise.cpp explains it.
#pragma once

#include <memory>
#include <vector>

#include "kernels/common/kernel.h"
#include "kernels/cpu/pointwise_plan.h"

namespace tessera::cpu {

class Pointwise final : public Kernel {
 public:
  Pointwise(const KernelArgs& args, const BlockOps& ops);
  void run() override;
  /// The instructions that run as chains; for tests.
  std::vector<Chain> chains() const;

 private:
  /// An instruction's result for the current block.
  struct Register {
    unsigned char* buffer = nullptr;
    unsigned char* spread = nullptr;    ///< if not null: every value repeated along its row
    const void* values = nullptr;       ///< `buffer`, or other memory with the same values
    const void* filled_from = nullptr;  ///< for a broadcast load: what the buffer holds now
    int64_t filled = 0;
  };

  void advance(int dim, int64_t count) {
    for (size_t k = 0; k < offsets_.size(); ++k) offsets_[k] += plan_.nest.strides[k][dim] * count;
  }

  /// Runs all blocks of the two innermost dims.
  void run_plane();
  void run_block(const Extent& e);
  void run_long_row();
  void run_instr(int i, const Extent& e);
  void reduce_piece(int i, int64_t piece, const Extent& e);
  void run_chain(const BoundInstr& op, void* out, const Extent& e, int64_t first = 0) const;
  void compute(const BoundInstr& op, void* out, const Extent& e, int64_t first = 0) const;
  void compute_and_fetch(const BoundInstr& op, void* out, const Extent& e) const;
  void run_load(const BoundInstr& op, Register& reg, const Extent& e);
  void run_index(const BoundInstr& op, Register& reg, const Extent& e);
  void mark_positions(const BoundInstr& op, uint8_t* out, const Extent& e) const;
  void run_random(const BoundInstr& op, Register& reg, const Extent& e);
  void run_mask(const BoundInstr& op, Register& reg, const Extent& e);
  void* target_of(const BoundInstr& op, const Register& reg) const;
  const void* operand(const BoundInstr& reader, int reg) const;
  void spread_along_rows(DType dtype, const Register& reg, const Extent& e);
  bool selects_none(const BoundInstr& op, const Extent& e) const;
  void store_outputs(const Extent& e);
  void store_output(int number, const Extent& e);
  void store_rows(const Output& out, int number, const Extent& e);
  void store(const void* from, const BlockStrides& strides, int number, const Extent& e);
  void refill(bool all);
  void fill_constant(const Instr& instr, const Register& reg);

  KernelArgs args_;
  const BlockOps& ops_;
  const PointwisePlan plan_;
  std::vector<int64_t> offsets_;  ///< by operand of the nest, for the current block
  std::vector<Register> registers_;
  std::vector<int64_t> values_;             ///< of the step's exprs
  std::vector<std::vector<double>> parts_;  ///< by instruction: a row's reductions by piece
  std::vector<unsigned char> memory_;
  unsigned char* scratch_ = nullptr;  ///< one register
};

/// Binds with the loops of one instruction set; for tests.
std::unique_ptr<Kernel> bind_pointwise_with(const KernelArgs& args, const BlockOps& ops);

}  // namespace tessera::cpu
