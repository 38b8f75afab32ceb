// Binding of fused pointwise steps: passes over long rows. A row instruction needs all elements
// before its result can be read, so a row is visited once for each row instruction that waits for
// another's result (softmax: largest element, sum, result). A pass computes again what it needs of
// elements: from memory that the pass before brought into the cache.
#include <algorithm>

#include "kernels/cpu/pointwise_plan.h"

namespace tessera::cpu {

namespace {

class RowPassPlanner {
 public:
  explicit RowPassPlanner(PointwisePlan& plan) : plan_(plan), level_(plan.code.size(), 0) {}

  void run() {
    int last = 0;
    for (int i = 0; i < count(); ++i) {
      const BoundInstr& op = plan_.code[i];
      if (op.unused) continue;
      for (const int r : reads_of(op)) {
        if (r >= 0) level_[i] = std::max(level_[i], level_[r]);
      }
      if (!reduces_row(op.instr.code)) continue;
      last = std::max(last, level_[i]);
      ++level_[i];
    }
    for (const Output& out : plan_.outputs) {
      if (!plan_.stored_last(out)) last = std::max(last, level_[out.reg]);
    }
    plan_.passes.resize(static_cast<size_t>(last) + 2);
    plan_.passes[last].stores = true;
    for (int p = 0; p <= last + 1; ++p) plan_pass(p);
  }

 private:
  int count() const { return static_cast<int>(plan_.code.size()); }
  /// True if it is computed for every piece.
  bool by_piece(const BoundInstr& op) const {
    return op.broadcast == Broadcast::none && !op.unused && !is_still(op.instr.code);
  }

  void plan_pass(int p) {
    RowPass& pass = plan_.passes[p];
    std::vector<char> wanted(plan_.code.size(), 0);
    for (const Output& out : plan_.outputs) wanted[out.reg] |= pass.stores;
    for (int i = count() - 1; i >= 0; --i) {
      const BoundInstr& op = plan_.code[i];
      const bool reduces = reduces_row(op.instr.code);
      if (op.unused || is_still(op.instr.code)) continue;
      if (reduces ? level_[i] != p + 1 : wanted[i] == 0 || !by_piece(op)) continue;
      pass.pieces.push_back(i);
      for (const int r : reads_of(op)) {
        if (r >= 0) wanted[r] = 1;
      }
    }
    std::reverse(pass.pieces.begin(), pass.pieces.end());
    for (int i = 0; i < count(); ++i) {
      const BoundInstr& op = plan_.code[i];
      if (op.unused || is_still(op.instr.code) || reduces_row(op.instr.code)) continue;
      if (!by_piece(op) && level_[i] == p) pass.once.push_back(i);
    }
  }

  PointwisePlan& plan_;
  std::vector<int> level_;  ///< by instruction: the pass before which its operands are complete
};

}  // namespace

void plan_row_passes(PointwisePlan& plan) {
  if (plan.cuts_rows()) RowPassPlanner(plan).run();
}

}  // namespace tessera::cpu
