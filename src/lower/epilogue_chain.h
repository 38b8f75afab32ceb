// The parts of the epilogue pass: a pointwise step seen from the product whose result it loads, and
// both steps with some of its instructions in the product.
#pragma once

#include <optional>
#include <vector>

#include "runtime/program.h"

namespace tessera {

/// Of the elements that a view or all views of a step touch; a repeated one counts once.
int64_t touched_bytes(const View& view);
int64_t touched_bytes(const Step& step);

/// A pointwise step that loads `buffer`.
class End {
 public:
  End(const Step& step, int buffer);

  const Step& step() const { return step_; }
  /// The load, or less than 0 if there is not just one.
  int load() const { return load_; }
  /// The instructions that may be part of a product: each alone uses the one before, the first one
  /// the load; their other operands are loads, or gelu_grad of one.
  const std::vector<int>& chain() const { return chain_; }
  const Instr& at(int reg) const { return step_.pointwise.code[static_cast<size_t>(reg)]; }
  const View& view(int load) const { return step_.in[static_cast<size_t>(at(load).slot)]; }
  /// The output that stores a register, or -1.
  int output(int reg) const;
  /// The operand of `reg` that is not `value`.
  int other(int reg, int value) const { return at(reg).a == value ? at(reg).b : at(reg).a; }
  /// Whether nothing but the first `count` instructions of the chain reads `buffer`.
  bool reads_only_there(int buffer, size_t count) const;

 private:
  bool is_load(int reg) const { return reg >= 0 && reg != load_ && at(reg).code == Code::load; }
  bool is_part(int next, int value) const;

  const Step& step_;
  std::vector<std::vector<int>> users_;
  int load_ = -1;
  std::vector<int> chain_;
};

/// What becomes of a product and the step behind it; `rest` has no outputs if nothing is left.
struct Ended {
  Step product, rest;
};

/// The first `count` instructions of the chain as the end of `product`, which stores the last one
/// in `result` (of the pointwise step: one of its outputs, or an operand that is replaced) and
/// others that are outputs behind it. Empty if the steps are over other dims, or what is left would
/// need what is not there any more.
std::optional<Ended> end_product(const Step& product, const End& end, const View& result,
                                 size_t count);

/// `step` with gelu_grad computed of all that it loads of `buffer`.
Step with_slopes(const Step& step, int buffer);

}  // namespace tessera
