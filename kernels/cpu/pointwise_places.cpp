// Binding of fused pointwise steps, third part: where results lie. What few arrays a block walks
// over stays in the L1 cache, so registers that are done give their place to the next ones: to the
// very instruction that reads them last, where it goes element by element, and a block of an
// output's memory serves until its last writer comes.
#include <algorithm>

#include "kernels/cpu/pointwise_interpreter.h"

namespace tessera::cpu {

namespace {

/// Steps that touch more than this write past the caches, as memcpy does: no line is read to be
/// overwritten. Where exponentials or their like are computed of every element, that reading hides
/// behind them, and results stay for their readers up to twice as much.
constexpr int64_t kStreamBytes = int64_t{12} << 20;

bool computes_long(Code code) {
  constexpr Code kLong[] = {Code::exp,  Code::log,     Code::log1p,    Code::sin,  Code::cos,
                            Code::tanh, Code::sigmoid, Code::softplus, Code::gelu, Code::gelu_grad,
                            Code::silu, Code::erf,     Code::erf_inv,  Code::pow,  Code::random};
  return std::find(std::begin(kLong), std::end(kLong), code) != std::end(kLong);
}

/// Elements of which take long enough to fetch others meanwhile.
bool hides_fetching(const Op& op) {
  const auto slow = [](Link link) {
    return link == Link::div || link == Link::rdiv || link == Link::sqrt || link == Link::exp;
  };
  if (op.chain) return slow(op.chain->shape.first) || slow(op.chain->shape.second);
  const Code code = op.instr.code;
  return code != Code::random && (computes_long(code) || code == Code::div || code == Code::sqrt);
}

/// [first, last) bytes that a view touches.
std::pair<const char*, const char*> range_of(const TensorArg& t) {
  int64_t low = 0, high = 0;
  for (size_t d = 0; d < t.sizes.size(); ++d) {
    if (t.sizes[d] == 0) return {nullptr, nullptr};
    (t.strides[d] < 0 ? low : high) += (t.sizes[d] - 1) * t.strides[d];
  }
  const char* base = static_cast<const char*>(t.data);
  return {base + low * size_of(t.dtype), base + (high + 1) * size_of(t.dtype)};
}

int64_t bytes_of(const TensorArg& t) {
  const auto [first, last] = range_of(t);
  return last - first;
}

bool overlap(const TensorArg& x, const TensorArg& y) {
  auto [a, b] = range_of(x);
  auto [c, d] = range_of(y);
  return a < d && c < b;
}

/// Exactly one element of `x` under each of `y`.
bool same_place(const TensorArg& x, const TensorArg& y) {
  return x.data == y.data && x.dtype == y.dtype && x.strides == y.strides;
}

bool lasting(const Op& op) {
  const Code code = op.instr.code;
  return code == Code::constant || code == Code::value || code == Code::load;
}

/// Goes element by element through whole registers, and may write where it reads.
bool by_element(const Op& op) {
  return !positional(op.instr.code) && !lasting(op) && op.instr.code < Code::row_sum && !op.alias &&
         op.spread == Spread::full;
}

}  // namespace

/// Of each register the last instruction that reads it. One that may hand on its operand's array
/// (copy, mask) keeps it alive.
std::vector<int> Pointwise::last_reads() const {
  const int count = static_cast<int>(code_.size());
  std::vector<int> last(code_.size(), -1);
  for (const Output& out : outputs_) last[static_cast<size_t>(out.reg)] = count;
  for (int i = count - 1; i >= 0; --i) {
    const Op& op = code_[static_cast<size_t>(i)];
    const bool hands_on = op.alias || op.instr.code == Code::mask;
    for (const int r : reads_of(op)) {
      if (r < 0) continue;
      int& of_operand = last[static_cast<size_t>(r)];
      of_operand = std::max({of_operand, i, hands_on ? last[static_cast<size_t>(i)] : -1});
    }
  }
  return last;
}

/// Notes which instruction is the last to read what an output's memory held: an input may lie at
/// the very same place if nobody wants it any more when the output is written. False: it may not be
/// written before the end of the block.
bool Pointwise::find_last_read(Output& out, const TensorArg& target,
                               const std::vector<int>& last) const {
  for (size_t i = 0; i < code_.size(); ++i) {
    const Op& op = code_[i];
    if (op.instr.code != Code::load || !overlap(*op.arg, target)) continue;
    if (!same_place(*op.arg, target) || last[i] > out.reg) return false;
    out.read_to = std::max(out.read_to, last[i]);
  }
  return true;
}

/// An output that is stored from where an input lies may find another output stored there before.
void Pointwise::find_copied(const std::vector<int>& last) {
  for (size_t i = 0; i < code_.size(); ++i) {
    Op& op = code_[i];
    op.copied = op.arg != nullptr && last[i] == static_cast<int>(code_.size()) &&
                std::any_of(args_.out.begin(), args_.out.end(),
                            [&](const TensorArg& out) { return overlap(*op.arg, out); });
  }
}

int64_t Pointwise::operand_bytes() const {
  int64_t bytes = 0;
  for (const TensorArg& in : args_.in) bytes += bytes_of(in);
  for (const TensorArg& out : args_.out) bytes += bytes_of(out);
  return bytes;
}

/// Many operands that come from far are asked for a block ahead, while an instruction computes what
/// takes long: the walks before and after it do little but read, each an array of its own. One or
/// two arrays the processor fetches better itself.
void Pointwise::choose_fetched(int64_t bytes) {
  constexpr int64_t kNear = int64_t{1} << 20;
  if (row_ >= 0 || bytes < kNear) return;
  std::vector<int> loads;
  for (size_t i = 0; i < code_.size(); ++i) {
    const Op& op = code_[i];
    if (op.instr.code == Code::load && op.spread == Spread::full && op.place.dense(block_))
      loads.push_back(static_cast<int>(i));
  }
  const auto slow = std::find_if(code_.begin(), code_.end(), [](const Op& op) {
    return !op.unused && op.spread == Spread::full && hides_fetching(op);
  });
  if (std::ssize(loads) < kManyArrays || slow == code_.end()) return;
  slow->fetches = true;
  fetched_ = std::move(loads);
}

void Pointwise::choose_outputs() {
  const std::vector<int> last = last_reads();
  find_copied(last);
  const int64_t bytes = operand_bytes();
  const bool hides = std::any_of(code_.begin(), code_.end(), [](const Op& op) {
    return op.spread != Spread::per_row && computes_long(op.instr.code);
  });
  const bool streams = bytes >= (hides ? 2 : 1) * kStreamBytes;
  choose_fetched(bytes);
  for (size_t k = 0; k < outputs_.size(); ++k) {
    Output& out = outputs_[k];
    const TensorArg& target = args_.out[k];
    Op& op = code_[out.reg];
    const Code code = op.instr.code;
    const bool computed = !positional(code) && code != Code::constant && code != Code::value &&
                          !op.alias && op.spread != Spread::per_row;
    out.once_a_row = row_ >= 0 && out.place.inner == 0;
    if (!out.once_a_row) need_full(out.reg);
    out.stream = streams && !is_narrow(target.dtype);
    out.direct = computed && !out.stream && op.output < 0 && !is_narrow(target.dtype) &&
                 out.place.dense(block_) && find_last_read(out, target, last);
    check(stored_as(target.dtype) == stored_as(op.instr.dtype),
          "output {} of a pointwise step is {}, but its register is {}", k, to_string(target.dtype),
          to_string(op.instr.dtype));
    if (out.direct) op.output = static_cast<int>(k);
  }
}

/// Memory that registers take turns in: a buffer, or a block of an output that is written at its
/// place.
struct Pointwise::Slot {
  int64_t bytes = 0, offset = 0;
  int output = -1, writer = -1;  ///< of an output: the instruction that makes it
  int used_to = -1;              ///< the last instruction that reads what is there
  DType type = DType::float32;   ///< of what is there
  bool in_place = false;         ///< what is there is a whole register: its last reader may write
};

/// Places for all registers, in order; the last one reads `last[i]`.
void Pointwise::assign_buffers() {
  const std::vector<int> last = last_reads();
  std::vector<Slot> slots;
  for (size_t k = 0; k < outputs_.size(); ++k) {
    const Output& out = outputs_[k];
    if (!out.direct) continue;
    slots.push_back(
        {0, 0, static_cast<int>(k), out.reg, out.read_to, stored_as(args_.out[k].dtype), true});
  }
  int64_t top = 0;
  auto reserve = [&](int64_t bytes) {
    const int64_t at = top;
    top += (bytes + 63) / 64 * 64;
    return at;
  };
  std::vector<int64_t> place(code_.size(), 0), full(code_.size(), -1);
  for (size_t i = 0; i < code_.size(); ++i) {
    Op& op = code_[i];
    const int64_t bytes = (capacity_ + kSlack) * size_of(stored_as(op.instr.dtype));
    if (op.needs_full) full[i] = reserve(bytes);
    if (op.unused || op.output >= 0) continue;
    Slot* slot = lasting(op) ? nullptr : find_slot(slots, static_cast<int>(i), last[i], bytes);
    if (slot == nullptr) {
      slots.push_back({bytes, reserve(bytes)});
      slot = &slots.back();
    }
    slot->used_to =
        lasting(op) ? static_cast<int>(code_.size()) : std::max<int>(last[i], static_cast<int>(i));
    slot->type = stored_as(op.instr.dtype);
    slot->in_place = by_element(op);
    place[i] = slot->offset;
    if (slot->output >= 0) op.output = slot->output;
  }
  const int64_t scratch = reserve((capacity_ + kSlack) * 8);
  memory_.assign(static_cast<size_t>(top) + 64, 0);
  unsigned char* base =
      memory_.data() + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64) % 64;
  for (size_t i = 0; i < code_.size(); ++i) {
    code_[i].buffer = base + place[i];
    if (full[i] >= 0) code_[i].full = base + full[i];
  }
  scratch_ = base + scratch;
}

/// Where instruction `i`, whose result is read up to `last`, may write: an output's memory rather
/// than a buffer, and one that it reads rather than another. Null: nowhere yet.
Pointwise::Slot* Pointwise::find_slot(std::vector<Slot>& slots, int i, int last, int64_t bytes) {
  const Op& op = code_[static_cast<size_t>(i)];
  const bool anywhere = by_element(op);
  const DType type = stored_as(op.instr.dtype);
  Slot* found = nullptr;
  for (Slot& slot : slots) {
    const bool here = anywhere && slot.in_place && slot.used_to == i && slot.type == type;
    if (!here && slot.used_to >= i) continue;
    if (slot.output >= 0) {
      if (anywhere && slot.type == type && i < slot.writer && last <= slot.writer) return &slot;
    } else if (slot.bytes == bytes && (found == nullptr || here)) {
      found = &slot;
    }
  }
  return found;
}

}  // namespace tessera::cpu
