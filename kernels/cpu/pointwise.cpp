// Fused pointwise steps: a block interpreter.
//
// The iteration space is visited in blocks of about a thousand elements: some rows of the innermost
// dim, or a piece of one. Per block, every instruction runs one tight loop over registers: dense
// arrays that stay in the L1 cache. A dense load is its own register (no copy), and so is the last
// writer of an output that overlaps no input. All decisions are in the plan (pointwise_plan.h).
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/common/pointwise.h"
#include "kernels/cpu/pointwise.h"
#include "kernels/cpu/reduce_row.h"
#include "kernels/cpu/tables.h"

namespace tessera::cpu {
namespace {

/// Copies a strided operand into a dense register.
template <class T>
void gather_rows(const T* from, const BlockStrides& p, const Extent& e, T* to) {
  for (int64_t r = 0; r < e.rows; ++r, from += p.outer, to += e.n) {
    if (p.inner == 1) {
      std::memcpy(to, from, static_cast<size_t>(e.n) * sizeof(T));
    } else if (p.inner == 0) {
      std::fill(to, to + e.n, *from);
    } else {
      for (int64_t i = 0; i < e.n; ++i) to[i] = from[i * p.inner];
    }
  }
}

template <class T>
void scatter_rows(const T* from, const BlockStrides& p, const Extent& e, T* to) {
  for (int64_t r = 0; r < e.rows; ++r, to += p.outer, from += e.n) {
    if (p.inner == 1) {
      std::memcpy(to, from, static_cast<size_t>(e.n) * sizeof(T));
    } else {
      for (int64_t i = 0; i < e.n; ++i) to[i * p.inner] = from[i];
    }
  }
}

/// The reduction of a row from those of its pieces, as reduce_row() orders it.
template <class F, class T>
T combined(const T* parts, int64_t count) {
  Pairwise<F, T> all;
  for (int64_t i = 0; i < count; ++i) all.add(parts[i]);
  return all.total();
}

template <class T>
T combined(PointwiseOp code, const T* parts, int64_t count) {
  switch (code) {
    case PointwiseOp::row_sum:
      return combined<Sum>(parts, count);
    case PointwiseOp::row_prod:
      return combined<Prod>(parts, count);
    case PointwiseOp::row_max:
      return combined<Max>(parts, count);
    default:
      return combined<Min>(parts, count);
  }
}

}  // namespace

Pointwise::Pointwise(const KernelArgs& args, const BlockOps& ops)
    : args_(args), ops_(ops), plan_(plan_pointwise(args_, ops)), offsets_(plan_.starts) {
  if (plan_.nest.elements() == 0) return;
  for (size_t i = 0; i < args_.step->exprs.size(); ++i)
    values_.push_back(eval(args_, static_cast<int>(i)));
  const RegisterLayout& layout = plan_.registers;
  memory_.assign(static_cast<size_t>(layout.bytes) + 64, 0);
  unsigned char* base =
      memory_.data() + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64) % 64;
  for (size_t i = 0; i < plan_.code.size(); ++i) {
    unsigned char* buffer = base + layout.at[i];
    registers_.push_back(
        {buffer, layout.spread[i] < 0 ? nullptr : base + layout.spread[i], buffer});
  }
  scratch_ = base + layout.scratch;
  parts_.resize(plan_.code.size());
  for (size_t i = 0; plan_.cuts_rows() && i < plan_.code.size(); ++i) {
    if (reduces_row(plan_.code[i].instr.code))
      parts_[i].resize(static_cast<size_t>(plan_.nest.sizes.back() / plan_.block.n + 1));
  }
  refill(true);
}

std::vector<Chain> Pointwise::chains() const {
  std::vector<Chain> result;
  for (const BoundInstr& op : plan_.code) {
    if (op.chain) result.push_back(*op.chain);
  }
  return result;
}

void Pointwise::run() {
  if (plan_.nest.elements() == 0) return;
  refill(false);
  for (Register& reg : registers_) reg.filled_from = nullptr;
  const int outer = std::max(0, plan_.nest.rank() - 2);
  std::array<int64_t, kMaxDims> index{};
  int d = 0;
  do {
    run_plane();
    for (d = outer - 1; d >= 0; --d) {
      advance(d, 1);
      if (++index[d] < plan_.nest.sizes[d]) break;
      advance(d, -plan_.nest.sizes[d]);
      index[d] = 0;
    }
  } while (d >= 0);
#if defined(__SSE2__)
  _mm_sfence();  // makes streamed stores visible to other ranks before the step ends
#endif
}

void Pointwise::run_plane() {
  const int rank = plan_.nest.rank();
  const int64_t n1 = rank > 1 ? plan_.nest.sizes[rank - 2] : 1;
  const int64_t n0 = rank > 0 ? plan_.nest.sizes[rank - 1] : 1;
  for (int64_t i = 0; i < n1; i += plan_.block.rows) {
    const int64_t rows = std::min(plan_.block.rows, n1 - i);
    for (int64_t j = 0; plan_.passes.empty() && j < n0; j += plan_.block.n) {
      const int64_t n = std::min(plan_.block.n, n0 - j);
      run_block({rows, n});
      if (rank > 0) advance(rank - 1, n);
    }
    if (!plan_.passes.empty()) {
      run_long_row();
    } else if (rank > 0) {
      advance(rank - 1, -n0);
    }
    if (rank > 1) advance(rank - 2, rows);
  }
  if (rank > 1) advance(rank - 2, -n1);
}

void Pointwise::run_block(const Extent& e) {
  for (const int i : plan_.order) run_instr(i, e);
  store_outputs(e);
}

/// A row in pieces, in as many passes as its row instructions need.
void Pointwise::run_long_row() {
  const int dim = plan_.nest.rank() - 1;
  const int64_t n = plan_.nest.sizes[dim];
  for (const RowPass& pass : plan_.passes) {
    for (const int i : pass.once) run_instr(i, plan_.block);
    if (pass.pieces.empty() && !pass.stores) continue;
    for (int64_t j = 0; j < n; j += plan_.block.n) {
      const Extent e{1, std::min(plan_.block.n, n - j)};
      for (const int i : pass.pieces) {
        if (reduces_row(plan_.code[i].instr.code)) {
          reduce_piece(i, j / plan_.block.n, e);
        } else {
          run_instr(i, e);
        }
      }
      for (size_t k = 0; pass.stores && k < plan_.outputs.size(); ++k) {
        if (!plan_.stored_last(plan_.outputs[k])) store_output(static_cast<int>(k), e);
      }
      advance(dim, e.n);
    }
    advance(dim, -n);
  }
  for (size_t k = 0; k < plan_.outputs.size(); ++k) {
    if (plan_.stored_last(plan_.outputs[k])) store_output(static_cast<int>(k), {1, 1});
  }
}

/// After the last piece the register has the reduction of the row.
void Pointwise::reduce_piece(int i, int64_t piece, const Extent& e) {
  const BoundInstr& op = plan_.code[i];
  Register& reg = registers_[i];
  run_instr(i, e);
  with_type(op.instr.dtype, [&](auto zero) {
    using T = decltype(zero);
    T* parts = reinterpret_cast<T*>(parts_[i].data());
    std::memcpy(parts + piece, reg.buffer, sizeof(T));
    if ((piece + 1) * plan_.block.n < plan_.nest.sizes.back()) return;
    const T all = combined(op.instr.code, parts, piece + 1);
    std::memcpy(reg.buffer, &all, sizeof(T));
    if (reg.spread != nullptr) spread_along_rows(op.instr.dtype, reg, plan_.block);
  });
}

void Pointwise::run_instr(int i, const Extent& e) {
  const Extent row{1, e.rows};  // one number per row
  const BoundInstr& op = plan_.code[i];
  Register& reg = registers_[i];
  const Instr& instr = op.instr;
  const Extent& mine = op.broadcast == Broadcast::along_row ? row : e;
  switch (instr.code) {
    case PointwiseOp::load:
      run_load(op, reg, mine);
      break;
    case PointwiseOp::index:
      run_index(op, reg, mine);
      break;
    case PointwiseOp::random:
      run_random(op, reg, e);
      break;
    case PointwiseOp::mask:
      run_mask(op, reg, mine);
      break;
    case PointwiseOp::row_sum:
    case PointwiseOp::row_prod:
    case PointwiseOp::row_max:
    case PointwiseOp::row_min:
      if (op.chain) {
        run_chain(op, reg.buffer, e);
      } else {
        const Register& from = registers_[instr.a];
        op.row_fn(from.spread ? from.spread : from.values, reg.buffer, e.rows, e.n);
      }
      break;
    default: {
      if (op.alias) {
        reg.values = registers_[instr.a].values;
        break;
      }
      void* out = target_of(op, reg);
      reg.values = out;
      if (op.position >= 0) {
        mark_positions(op, static_cast<uint8_t*>(out), mine);
        break;
      }
      if (op.keeps && selects_none(op, mine)) break;
      if (op.fetches) {
        compute_and_fetch(op, out, e);
      } else {
        compute(op, out, mine);
      }
    }
  }
  if (reg.spread != nullptr) spread_along_rows(instr.dtype, reg, e);
}

/// True if the condition of a `where` is false in the whole block.
bool Pointwise::selects_none(const BoundInstr& op, const Extent& e) const {
  const int64_t n = op.by_row == op.instr.a ? e.rows : e.elements();
  return std::memchr(operand(op, op.instr.a), 1, static_cast<size_t>(n)) == nullptr;
}

void Pointwise::store_outputs(const Extent& e) {
  for (size_t k = 0; k < plan_.outputs.size(); ++k) store_output(static_cast<int>(k), e);
}

void Pointwise::store_output(int number, const Extent& e) {
  const Output& out = plan_.outputs[number];
  if (out.direct) return;
  if (out.once_a_row) return store_rows(out, number, e);
  const Register& reg = registers_[out.reg];
  store(reg.spread ? reg.spread : reg.values, out.strides, number, e);
}

/// Runs an elementwise instruction, from element `first` of the operands on.
void Pointwise::compute(const BoundInstr& op, void* out, const Extent& e, int64_t first) const {
  if (op.chain) return run_chain(op, out, e, first);
  const auto from = [&](int reg) -> const void* {
    if (reg < 0) return nullptr;
    return static_cast<const char*>(operand(op, reg)) +
           first * size_of(stored_as(plan_.code[reg].instr.dtype));
  };
  const Instr& instr = op.instr;
  op.fn({from(instr.a), from(instr.b), from(instr.c), out, e.elements(), e.n});
}

/// From element `first` of the operands on.
void Pointwise::run_chain(const BoundInstr& op, void* out, const Extent& e, int64_t first) const {
  const Chain& chain = *op.chain;
  const int64_t skipped = first * size_of(stored_as(op.instr.dtype));
  auto array = [&](int reg) -> const void* {
    return reg < 0 ? nullptr : static_cast<const char*>(registers_[reg].values) + skipped;
  };
  auto numbers = [&](int reg, bool negative) {
    return reg < 0 ? RowNumbers{}
                   : RowNumbers{registers_[reg].values,
                                plan_.code[reg].broadcast == Broadcast::along_row, negative};
  };
  chain.fn({array(chain.x), array(chain.y), array(chain.z),
            numbers(chain.before.summand, chain.before.negative),
            numbers(chain.before.factor, false), numbers(chain.y_factor, false),
            numbers(chain.after.summand, chain.after.negative), numbers(chain.after.factor, false),
            numbers(chain.z_factor, false), out, chain.by_rows ? e.rows : 1,
            chain.by_rows ? e.n : e.elements()});
}

/// The same in pieces; after each one, a piece of the next block is prefetched.
void Pointwise::compute_and_fetch(const BoundInstr& op, void* out, const Extent& e) const {
  constexpr int64_t kPiece = 128, kLine = 64;
  const int64_t item = size_of(stored_as(op.instr.dtype));
  for (int64_t first = 0; first < e.elements(); first += kPiece) {
    const int64_t n = std::min(kPiece, e.elements() - first);
    for (const int load : plan_.fetched) {
      const BoundInstr& source = plan_.code[load];
      const int64_t bytes = size_of(source.arg->dtype);
      const char* next = static_cast<const char*>(source.arg->data) +
                         (offsets_[source.strides.operand] + e.elements() + first) * bytes;
      for (int64_t at = 0; at < n * bytes; at += kLine) __builtin_prefetch(next + at);
    }
    compute(op, static_cast<char*>(out) + first * item, {1, n}, first);
  }
}

/// Where the result of an elementwise instruction goes.
void* Pointwise::target_of(const BoundInstr& op, const Register& reg) const {
  if (op.output < 0) return reg.buffer;
  const TensorArg& target = args_.out[op.output];
  return static_cast<char*>(target.data) + offsets_[op.output] * size_of(target.dtype);
}

/// A register as `reader` needs it: by element, or one number per row.
const void* Pointwise::operand(const BoundInstr& reader, int reg) const {
  if (reg < 0) return nullptr;
  const Register& from = registers_[reg];
  const bool by_element =
      reader.broadcast == Broadcast::none && reg != reader.by_row && from.spread != nullptr;
  return by_element ? from.spread : from.values;
}

/// Repeats the numbers of a register along their rows.
void Pointwise::spread_along_rows(DType dtype, const Register& reg, const Extent& e) {
  with_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* from = static_cast<const T*>(reg.values);
    T* to = reinterpret_cast<T*>(reg.spread);
    for (int64_t r = 0; r < e.rows; ++r, to += e.n) std::fill(to, to + e.n, from[r]);
  });
}

void Pointwise::store_rows(const Output& out, int number, const Extent& e) {
  const BlockStrides strides{out.strides.operand, out.strides.outer, 0};
  const BoundInstr& op = plan_.code[out.reg];
  const void* from = registers_[out.reg].values;
  if (op.broadcast == Broadcast::none) {  // constant along the row: the first element counts
    with_type(op.instr.dtype, [&](auto zero) {
      using T = decltype(zero);
      T* to = reinterpret_cast<T*>(scratch_);
      for (int64_t r = 0; r < e.rows; ++r) to[r] = static_cast<const T*>(from)[r * e.n];
    });
    from = scratch_;
  }
  store(from, strides, number, {1, e.rows});
}

void Pointwise::run_load(const BoundInstr& op, Register& reg, const Extent& e) {
  const BlockStrides& p = op.strides;
  const char* from =
      static_cast<const char*>(op.arg->data) + offsets_[p.operand] * size_of(op.arg->dtype);
  const bool narrow = is_narrow(op.arg->dtype);
  reg.values = reg.buffer;  // an earlier, smaller block may have been read in place
  if (p.dense(e)) {
    if (narrow) {
      ops_.widen(op.arg->dtype)({from, nullptr, nullptr, reg.buffer, e.elements()});
    } else if (op.copied) {
      std::memcpy(reg.buffer, from, static_cast<size_t>(e.elements() * size_of(op.arg->dtype)));
    } else {
      reg.values = from;
    }
    return;
  }
  // Repeated values may already be there.
  const bool repeats = e.rows == 1 ? p.inner == 0 : p.outer == 0;
  if (repeats && reg.filled_from == from && reg.filled >= e.elements()) return;
  reg.filled_from = repeats ? from : nullptr;
  reg.filled = e.elements();
  if (narrow) {
    uint16_t* packed = reinterpret_cast<uint16_t*>(scratch_);
    gather_rows(reinterpret_cast<const uint16_t*>(from), p, e, packed);
    ops_.widen(op.arg->dtype)({packed, nullptr, nullptr, reg.buffer, e.elements()});
    return;
  }
  with_type(op.instr.dtype, [&](auto zero) {
    using T = decltype(zero);
    gather_rows(reinterpret_cast<const T*>(from), p, e, reinterpret_cast<T*>(reg.buffer));
  });
}

void Pointwise::run_index(const BoundInstr& op, Register& reg, const Extent& e) {
  const int64_t first = values_[op.instr.expr] + offsets_[op.strides.operand];
  with_type(op.instr.dtype, [&](auto zero) {
    using T = decltype(zero);
    T* out = reinterpret_cast<T*>(reg.buffer);
    for (int64_t r = 0; r < e.rows; ++r) {
      const int64_t start = first + r * op.strides.outer;
      if constexpr (std::is_same_v<T, int32_t>) {  // the same bits in 32, which are vectors
        const auto from = static_cast<uint32_t>(start), n = static_cast<uint32_t>(e.n),
                   by = static_cast<uint32_t>(op.strides.inner);
        for (uint32_t i = 0; i < n; ++i) out[i] = static_cast<int32_t>(from + i * by);
        out += n;
        continue;
      }
      for (int64_t i = 0; i < e.n; ++i) *out++ = static_cast<T>(start + i * op.strides.inner);
    }
    if constexpr (std::is_same_v<T, float>) {
      const bool round = is_narrow(op.instr.dtype);
      for (T* x = out - e.elements(); round && x != out; ++x) *x = rounded_to(*x, op.instr.dtype);
    }
  });
}

/// Marks the element of each row whose index is the row's number, if the block has it.
void Pointwise::mark_positions(const BoundInstr& op, uint8_t* out, const Extent& e) const {
  const BoundInstr& index = plan_.code[op.position];
  const int64_t first = values_[index.instr.expr] + offsets_[index.strides.operand];
  std::memset(out, 0, static_cast<size_t>(e.elements()));
  with_type(index.instr.dtype, [&](auto zero) {
    const auto* numbers = static_cast<const decltype(zero)*>(registers_[op.by_row].values);
    for (int64_t r = 0; r < e.rows; ++r) {
      const int64_t at = static_cast<int64_t>(numbers[r]) - first - r * index.strides.outer;
      if (at >= 0 && at < e.n) out[r * e.n + at] = 1;
    }
  });
}

/// Runs of consecutive logical indices take whole Philox counters. The register starts at the word
/// of the first one.
void Pointwise::run_random(const BoundInstr& op, Register& reg, const Extent& e) {
  const Instr& instr = op.instr;
  const uint64_t seed = static_cast<uint64_t>(values_[instr.expr]);
  const uint64_t stream = static_cast<uint64_t>(values_[instr.expr + 1]);
  const size_t rank = args_.out[0].sizes.size();
  int64_t first = offsets_[op.strides.operand];
  for (size_t d = 0; d < rank; ++d) {
    first += values_[instr.expr + 2 + 2 * d] * values_[instr.expr + 3 + 2 * d];
  }
  auto words = [&](int64_t* out, int64_t start, int64_t n) {
    const int64_t skip = start & 3;
    ops_.random(out, static_cast<uint64_t>(start) >> 2, stream, seed, (skip + n + 3) / 4);
    return out + skip;
  };
  int64_t* out = reinterpret_cast<int64_t*>(reg.buffer);
  if (op.strides.dense(e)) {
    reg.values = words(out, first, e.elements());
    return;
  }
  reg.values = out;
  for (int64_t r = 0; r < e.rows; ++r, out += e.n) {
    const int64_t start = first + r * op.strides.outer;
    int64_t* row = reinterpret_cast<int64_t*>(scratch_);
    if (op.strides.inner == 1) {
      const int64_t* from = words(row, start, e.n);
      std::copy(from, from + e.n, out);
      continue;
    }
    for (int64_t i = 0; i < e.n; ++i) {
      out[i] = *words(row, start + i * op.strides.inner, 1);
    }
  }
}

/// If nothing of the block is masked, the result is the operand's array.
void Pointwise::run_mask(const BoundInstr& op, Register& reg, const Extent& e) {
  const BlockStrides& p = op.strides;
  const int64_t value = values_[op.instr.expr];
  const int64_t first = op.instr.slot < 0 ? (value != 0 ? -1 : 0) : offsets_[p.operand];
  const int64_t limit = op.instr.slot < 0 ? 0 : value;
  const int64_t last = first + (e.rows - 1) * p.outer + (e.n - 1) * p.inner;
  if (last < limit) {
    reg.values = operand(op, op.instr.a);
    return;
  }
  reg.values = reg.buffer;
  with_type(op.instr.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* from = static_cast<const T*>(operand(op, op.instr.a));
    T* out = reinterpret_cast<T*>(reg.buffer);
    T other = formula::cast<T>(op.instr.imm);
    if (op.instr.dtype == DType::bool_) other = T(op.instr.imm != 0);
    if constexpr (std::is_same_v<T, float>) {
      other = rounded_to(other, op.instr.dtype);
    }
    for (int64_t r = 0; r < e.rows; ++r, from += e.n, out += e.n) {
      const int64_t left = limit - first - r * p.outer;  // positions left below the limit
      const int64_t kept = p.inner > 0 ? std::clamp<int64_t>(left, 0, e.n) : (left > 0 ? e.n : 0);
      std::copy(from, from + kept, out);
      std::fill(out + kept, out + e.n, other);
    }
  });
}

void Pointwise::store(const void* from, const BlockStrides& strides, int number, const Extent& e) {
  const TensorArg& target = args_.out[number];
  const bool stream = plan_.outputs[number].stream;
  char* to = static_cast<char*>(target.data) + offsets_[number] * size_of(target.dtype);
  if (is_narrow(target.dtype)) {
    const BlockFn narrow = ops_.narrow(target.dtype);
    if (strides.dense(e)) return narrow({from, nullptr, nullptr, to, e.elements()});
    uint16_t* packed = reinterpret_cast<uint16_t*>(scratch_ + plan_.capacity * 4);
    narrow({from, nullptr, nullptr, packed, e.elements()});
    return scatter_rows(packed, strides, e, reinterpret_cast<uint16_t*>(to));
  }
  with_type(target.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* x = static_cast<const T*>(from);
    if (strides.dense(e) && stream) {
      ops_.stream(to, x, e.elements() * static_cast<int64_t>(sizeof(T)));
    } else if (strides.dense(e)) {
      std::memcpy(to, x, static_cast<size_t>(e.elements()) * sizeof(T));
    } else {
      scatter_rows(x, strides, e, reinterpret_cast<T*>(to));
    }
  });
}

void Pointwise::fill_constant(const Instr& instr, const Register& reg) {
  with_type(instr.dtype, [&](auto zero) {
    using T = decltype(zero);
    T* out = reinterpret_cast<T*>(reg.buffer);
    T x = instr.code == PointwiseOp::constant ? formula::cast<T>(instr.imm)
                                              : static_cast<T>(values_[instr.expr]);
    if (instr.dtype == DType::bool_) {
      x = T(instr.code == PointwiseOp::constant ? instr.imm != 0 : values_[instr.expr] != 0);
    }
    if constexpr (std::is_same_v<T, float>) {
      x = rounded_to(x, instr.dtype);
    }
    std::fill(out, out + plan_.block.elements(), x);
  });
}

/// Registers that are constant during a run: constants are filled once, expressions of scalars when
/// they change.
void Pointwise::refill(bool all) {
  const Step& step = *args_.step;
  for (size_t i = 0; i < values_.size(); ++i) {
    if (step.exprs[i].depends_on_scalars()) values_[i] = eval(args_, static_cast<int>(i));
  }
  for (size_t i = 0; i < plan_.code.size(); ++i) {
    const Instr& instr = plan_.code[i].instr;
    const bool varies =
        instr.code == PointwiseOp::value && step.exprs[instr.expr].depends_on_scalars();
    if (varies || (all && is_still(instr.code))) fill_constant(instr, registers_[i]);
  }
}

Sharing share_pointwise(const Step& step, int threads) {
  const double instructions = static_cast<double>(step.pointwise.code.size());
  const View& out = step.out.at(0);
  std::vector<char> allowed(out.sizes.size(), 1);
  if (const int row = row_dim(step.pointwise); row >= 0) allowed[static_cast<size_t>(row)] = 0;
  return {outermost_dim(out, allowed, threads),
          static_cast<double>(out.elements()) * instructions * 0.2};
}

std::unique_ptr<Kernel> bind_pointwise_with(const KernelArgs& args, const BlockOps& ops) {
  return std::make_unique<Pointwise>(args, ops);
}

std::unique_ptr<Kernel> bind_pointwise(const KernelArgs& args) {
  return bind_pointwise_with(args, *usable_block_ops().back());
}

}  // namespace tessera::cpu
