// Binding of fused pointwise steps: register allocation. A block should pass through few arrays, so
// that they stay in the L1 cache. So a dead register's memory is reused: even by the instruction
// that reads it last, if that works element by element. The block of an output's memory also serves
// as a register until its last writer.
#include <algorithm>

#include "kernels/cpu/pointwise_plan.h"

namespace tessera::cpu {

namespace {

/// True if its memory is not shared over time.
bool lasting(const PointwisePlan& plan, const BoundInstr& op) {
  const bool of_row = plan.cuts_rows() && op.broadcast != Broadcast::none;  // read by every piece
  return is_still(op.instr.code) || op.instr.code == PointwiseOp::load || of_row;
}

/// True if the instruction works element by element on whole registers, so that it may write where
/// it reads.
bool by_element(const BoundInstr& op) {
  return !is_positional(op.instr.code) && !is_still(op.instr.code) &&
         op.instr.code != PointwiseOp::load && !reduces_row(op.instr.code) && !op.alias &&
         op.broadcast == Broadcast::none;
}

class RegisterAllocator {
 public:
  RegisterAllocator(PointwisePlan& plan, const KernelArgs& args)
      : plan_(plan), last_(last_reads(plan)) {
    for (size_t k = 0; k < plan.outputs.size(); ++k) {
      const Output& out = plan.outputs[k];
      if (!out.direct || plan.cuts_rows()) continue;  // earlier passes must not write there
      slots_.push_back(
          {0, 0, static_cast<int>(k), out.reg, out.read_to, stored_as(args.out[k].dtype), true});
    }
  }

  void run() {
    const size_t count = plan_.code.size();
    layout_.at.assign(count, 0);
    layout_.spread.assign(count, -1);
    for (size_t i = 0; i < count; ++i) {
      const BoundInstr& op = plan_.code[i];
      if (op.spread) layout_.spread[i] = reserve(bytes_of(op));
      if (!op.unused && op.output < 0) place(static_cast<int>(i));
    }
    layout_.scratch = reserve((plan_.capacity + kSlack) * 8);
    plan_.registers = std::move(layout_);
  }

 private:
  /// Memory that registers share over time: a buffer, or the block of an output that is written
  /// directly.
  struct Slot {
    int64_t bytes = 0, offset = 0;
    int output = -1, writer = -1;  ///< for an output: the instruction that computes it
    int used_to = -1;              ///< last instruction that reads the content
    DType type = DType::float32;   ///< of the content
    bool in_place = false;  ///< the content is a whole register: its last reader may overwrite it
  };

  int64_t bytes_of(const BoundInstr& op) const {
    return (plan_.capacity + kSlack) * size_of(stored_as(op.instr.dtype));
  }

  int64_t reserve(int64_t bytes) {
    const int64_t at = layout_.bytes;
    layout_.bytes += (bytes + 63) / 64 * 64;
    return at;
  }

  void place(int i) {
    BoundInstr& op = plan_.code[i];
    Slot* slot = lasting(plan_, op) ? nullptr : find_slot(i);
    if (slot == nullptr) {
      slots_.push_back({bytes_of(op), reserve(bytes_of(op))});
      slot = &slots_.back();
    }
    slot->used_to =
        lasting(plan_, op) ? static_cast<int>(plan_.code.size()) : std::max(last_[i], i);
    slot->type = stored_as(op.instr.dtype);
    slot->in_place = by_element(op);
    layout_.at[i] = slot->offset;
    if (slot->output >= 0) op.output = slot->output;
  }

  /// Finds a slot for instruction `i`: preferably an output's memory, then one that it reads. Null
  /// if none is free.
  Slot* find_slot(int i) {
    const BoundInstr& op = plan_.code[i];
    const bool anywhere = by_element(op);
    const DType type = stored_as(op.instr.dtype);
    const int64_t bytes = bytes_of(op);
    Slot* found = nullptr;
    for (Slot& slot : slots_) {
      const bool here = anywhere && slot.in_place && slot.used_to == i && slot.type == type;
      if (!here && slot.used_to >= i) continue;
      if (slot.output >= 0) {
        if (anywhere && slot.type == type && i < slot.writer && last_[i] <= slot.writer)
          return &slot;
      } else if (slot.bytes == bytes && (found == nullptr || here)) {
        found = &slot;
      }
    }
    return found;
  }

  PointwisePlan& plan_;
  const std::vector<int> last_;
  std::vector<Slot> slots_;
  RegisterLayout layout_;
};

}  // namespace

/// An instruction that may return its operand's array (copy, mask) keeps it alive.
std::vector<int> last_reads(const PointwisePlan& plan) {
  const int count = static_cast<int>(plan.code.size());
  std::vector<int> last(plan.code.size(), -1);
  for (const Output& out : plan.outputs) last[static_cast<size_t>(out.reg)] = count;
  for (int i = count - 1; i >= 0; --i) {
    const BoundInstr& op = plan.code[static_cast<size_t>(i)];
    const bool hands_on = op.alias || op.instr.code == PointwiseOp::mask;
    for (const int r : reads_of(op)) {
      if (r < 0) continue;
      int& of_operand = last[static_cast<size_t>(r)];
      of_operand = std::max({of_operand, i, hands_on ? last[static_cast<size_t>(i)] : -1});
    }
  }
  return last;
}

void allocate_registers(PointwisePlan& plan, const KernelArgs& args) {
  RegisterAllocator(plan, args).run();
}

}  // namespace tessera::cpu
