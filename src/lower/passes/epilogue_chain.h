// The parts of fuse_epilogues: the chain of instructions that a matmul may take over from the
// pointwise step that loads its result, and the two steps that follow from it.
#pragma once

#include <optional>
#include <vector>

#include "program/program.h"

namespace tessera {

/// Bytes of the elements that a view, or all views of a step, touch. A repeated element counts
/// once.
int64_t touched_bytes(const View& view);
int64_t touched_bytes(const Step& step);

/// A pointwise step that loads `buffer`, the result of a matmul.
class EpilogueChain {
 public:
  EpilogueChain(const Step& step, int buffer);

  const Step& step() const { return step_; }
  /// The instruction that loads `buffer`; negative if there is none, or more than one.
  int load() const { return load_; }
  /// The registers of the chain, in order: each instruction is the only user of the value before
  /// it, starting with the load. Its other operand is a load, or gelu_grad of a load.
  const std::vector<int>& regs() const { return regs_; }
  const Instr& at(int reg) const { return step_.pointwise.code[static_cast<size_t>(reg)]; }
  const View& view(int load) const { return step_.in[static_cast<size_t>(at(load).slot)]; }
  /// The index of the output that stores a register, or -1.
  int output(int reg) const;
  /// The operand of `reg` that is not `value`.
  int other(int reg, int value) const { return at(reg).a == value ? at(reg).b : at(reg).a; }
  /// True if only the first `count` instructions of the chain read `buffer`.
  bool reads_only_there(int buffer, size_t count) const;

 private:
  bool is_load(int reg) const {
    return reg >= 0 && reg != load_ && at(reg).code == PointwiseOp::load;
  }
  bool is_part(int next, int value) const;

  const Step& step_;
  std::vector<std::vector<int>> users_;
  int load_ = -1;
  std::vector<int> regs_;
};

/// A matmul with its epilogue, and the rest of the pointwise step (no outputs if nothing is left).
struct FusedEpilogue {
  Step matmul, rest;
};

/// Makes the first `count` instructions of the chain the epilogue of `matmul`. The matmul stores
/// the last of them in `result`, which is an output of the pointwise step or an operand that may be
/// overwritten; its other outputs are those that the chain stores on the way. Nothing if the dims
/// of the two steps do not match, or if the rest of the pointwise step needs a value that is no
/// longer stored.
std::optional<FusedEpilogue> fuse_epilogue(const Step& matmul, const EpilogueChain& chain,
                                           const View& result, size_t count);

/// `step`, with gelu_grad applied to everything that it loads from `buffer`.
Step with_slopes(const Step& step, int buffer);

}  // namespace tessera
