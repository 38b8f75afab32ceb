// Binding of fused pointwise steps, second part: which registers hold one number a row, and which
// instructions become one walk.
#include "kernels/cpu/pointwise_interpreter.h"

namespace tessera::cpu {

/// The spread of every register of a step with row instructions, and which must be repeated along
/// their rows because an instruction on elements reads them.
void Pointwise::find_spreads() {
  for (Op& op : code_) {
    const Instr& instr = op.instr;
    const bool constant = instr.code == Code::constant || instr.code == Code::value;
    if (constant) op.spread = Spread::uniform;
    if (row_ < 0 || constant) continue;
    int full = 0, per_row = 0;
    for (int r : {instr.a, instr.b, instr.c}) {
      if (r < 0) continue;
      full += code_[r].spread == Spread::full;
      per_row += code_[r].spread == Spread::per_row;
    }
    const bool still = op.place.inner == 0;  // along the row
    if (instr.code == Code::load) {
      op.spread = !still ? Spread::full : op.place.outer == 0 ? Spread::uniform : Spread::per_row;
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

/// An instruction that alone reads a product (a row_sum, a sum or difference) takes the factors:
/// one walk instead of two, and the same bits.
void Pointwise::join_products() {
  std::vector<int> readers(code_.size(), 0);
  for (const Op& op : code_) {
    for (int r : {op.instr.a, op.instr.b, op.instr.c}) {
      if (r >= 0) ++readers[r];
    }
  }
  for (const Output& out : outputs_) ++readers[out.reg];
  for (Op& op : code_) {
    for (int r : {op.instr.a, op.instr.b}) {
      if (r >= 0 && readers[r] == 1 && join_product(op, code_[r])) break;
    }
  }
}

bool Pointwise::join_product(Op& op, Op& product) {
  Instr& instr = op.instr;
  const bool square = product.instr.code == Code::square;
  if ((!square && product.instr.code != Code::mul) || product.unused || product.by_row >= 0 ||
      product.spread != Spread::full)
    return false;
  const int a = product.instr.a, b = square ? a : product.instr.b;
  if (instr.code == Code::row_sum) {
    if (code_[a].spread != Spread::full || code_[b].spread != Spread::full) return false;
    op.product_fn = ops_.find_row_product(instr.dtype);
    if (op.product_fn == nullptr) return false;
    instr.b = b;
  } else {
    const bool first = &product == &code_[instr.a];
    if (op.spread != Spread::full || op.by_row >= 0) return false;
    op.fn = ops_.find_with_product(instr.code, instr.dtype, first);
    if (op.fn == nullptr) return false;
    instr.c = first ? instr.b : instr.a;
    instr.b = b;
  }
  instr.a = a;
  product.unused = true;
  return true;
}

void Pointwise::need_full(int reg) {
  if (reg >= 0 && code_[reg].spread == Spread::per_row) code_[reg].needs_full = true;
}

}  // namespace tessera::cpu
