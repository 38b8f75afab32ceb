// Binding of fused pointwise steps, second part: which registers hold one number, or one a row.
#include "kernels/cpu/pointwise_interpreter.h"

namespace tessera::cpu {

/// The spread of every register: which are one number, and in a step with row instructions, which
/// are one a row, and which of those must be repeated along their rows because an instruction on
/// elements reads them.
void Pointwise::find_spreads() {
  for (Op& op : code_) {
    const Instr& instr = op.instr;
    const bool constant = instr.code == Code::constant || instr.code == Code::value;
    const bool loaded = instr.code == Code::load && op.place.inner == 0 && op.place.outer == 0;
    if (constant || loaded) op.spread = Spread::uniform;
    if (row_ < 0 || constant || loaded) continue;
    int full = 0, per_row = 0;
    for (int r : {instr.a, instr.b, instr.c}) {
      if (r < 0) continue;
      full += code_[r].spread == Spread::full;
      per_row += code_[r].spread == Spread::per_row;
    }
    const bool still = op.place.inner == 0;  // along the row
    if (instr.code == Code::load) {
      op.spread = still ? Spread::per_row : Spread::full;
    } else if (instr.code >= Code::row_sum) {
      op.spread = Spread::per_row;
      need_full(instr.a);
    } else if (instr.code == Code::index) {
      op.spread = still ? Spread::per_row : Spread::full;
    } else if (full == 0 && per_row > 0 && (instr.code != Code::mask || still)) {
      op.spread = Spread::per_row;
    } else if (full == 0 && per_row == 0 && !positional(instr.code)) {
      op.spread = Spread::uniform;
    }
    if (op.spread == Spread::per_row) {  // a block is one row of such numbers
      op.place.inner = op.place.outer;
      op.place.outer = 0;
    } else if (op.spread == Spread::full) {
      if (instr.b >= 0 && instr.c < 0 && full == 1 && per_row == 1) {
        const bool first = code_[instr.a].spread == Spread::per_row;
        op.fn = ops_.find_by_rows(instr.code, instr.dtype, first ? PerRow::a : PerRow::b);
        if (op.fn != nullptr) op.by_row = first ? instr.a : instr.b;
      }
      for (int r : {instr.a, instr.b, instr.c}) {
        if (r != op.by_row) need_full(r);
      }
    }
  }
}

void Pointwise::need_full(int reg) {
  if (reg >= 0 && code_[reg].spread == Spread::per_row) code_[reg].needs_full = true;
}

}  // namespace tessera::cpu
