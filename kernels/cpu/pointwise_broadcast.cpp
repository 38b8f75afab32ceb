// Binding of fused pointwise steps: which registers hold one number; in a step with row
// instructions, which hold one number per row; and which of those must be repeated along their rows
// because an elementwise instruction reads them. A number per row that is compared with the
// positions of its row, as a label with classes, marks one of them instead.
#include "kernels/cpu/pointwise_plan.h"

namespace tessera::cpu {

namespace {

class BroadcastPlanner {
 public:
  BroadcastPlanner(PointwisePlan& plan, const BlockOps& ops)
      : plan_(plan), ops_(ops), readers_(plan.code.size(), 0) {
    for (const BoundInstr& op : plan.code) {
      for (const int r : {op.instr.a, op.instr.b, op.instr.c}) {
        if (r >= 0) ++readers_[r];
      }
    }
    for (const Output& out : plan.outputs) ++readers_[out.reg];
  }

  void run() {
    for (BoundInstr& op : plan_.code) {
      const bool loads_one =
          op.instr.code == PointwiseOp::load && op.strides.inner == 0 && op.strides.outer == 0;
      if (is_still(op.instr.code) || loads_one) {
        op.broadcast = Broadcast::everywhere;
      } else if (plan_.row >= 0) {
        plan_one(op);
      }
    }
  }

 private:
  int count(const Instr& instr, Broadcast broadcast) const {
    int n = 0;
    for (const int r : {instr.a, instr.b, instr.c})
      n += r >= 0 && plan_.code[r].broadcast == broadcast;
    return n;
  }

  void plan_one(BoundInstr& op) {
    const Instr& instr = op.instr;
    const int full = count(instr, Broadcast::none), per_row = count(instr, Broadcast::along_row);
    const bool still = op.strides.inner == 0;  // along the row
    if (instr.code == PointwiseOp::load || instr.code == PointwiseOp::index) {
      op.broadcast = still ? Broadcast::along_row : Broadcast::none;
    } else if (reduces_row(instr.code)) {
      op.broadcast = Broadcast::along_row;
      plan_.need_elements(instr.a);
    } else if (full == 0 && per_row > 0 && (instr.code != PointwiseOp::mask || still)) {
      op.broadcast = Broadcast::along_row;
    } else if (full == 0 && per_row == 0 && !is_positional(instr.code)) {
      op.broadcast = Broadcast::everywhere;
    }
    if (op.broadcast == Broadcast::along_row) {  // a block is one row of such numbers
      op.strides.inner = op.strides.outer;
      op.strides.outer = 0;
    } else if (op.broadcast == Broadcast::none && !find_position(op)) {
      read_elements(op, full == 1 && per_row == 1);
    }
  }

  /// The label of a row beside the numbers of its classes. They need not be written to be compared.
  bool find_position(BoundInstr& op) {
    if (op.instr.code != PointwiseOp::equal) return false;
    for (const auto& [number, index] :
         {std::pair(op.instr.a, op.instr.b), std::pair(op.instr.b, op.instr.a)}) {
      BoundInstr& along = plan_.code[index];
      if (plan_.code[number].broadcast != Broadcast::along_row ||
          along.instr.code != PointwiseOp::index || along.broadcast != Broadcast::none ||
          readers_[index] > 1 || !is_whole_number(along))
        continue;
      op.by_row = number;
      op.position = index;
      along.unused = true;
      return true;
    }
    return false;
  }

  static bool is_whole_number(const BoundInstr& op) {
    return op.instr.dtype == DType::int32 || op.instr.dtype == DType::int64;
  }

  /// `mixed`: one operand is read by element, the other as one number per row.
  void read_elements(BoundInstr& op, bool mixed) {
    const Instr& instr = op.instr;
    if (instr.b >= 0 && instr.c < 0 && mixed) {
      const bool first = plan_.code[instr.a].broadcast == Broadcast::along_row;
      op.fn = ops_.find_by_rows(instr.code, instr.dtype, first ? PerRow::a : PerRow::b);
      if (op.fn != nullptr) op.by_row = first ? instr.a : instr.b;
    }
    for (const int r : {instr.a, instr.b, instr.c}) {
      if (r != op.by_row) plan_.need_elements(r);
    }
  }

  PointwisePlan& plan_;
  const BlockOps& ops_;
  std::vector<int> readers_;  ///< by instruction
};

}  // namespace

void plan_broadcasts(PointwisePlan& plan, const BlockOps& ops) {
  BroadcastPlanner(plan, ops).run();
}

}  // namespace tessera::cpu
