// Fused pointwise steps: a block interpreter.
//
// The iteration space is simplified to few dims and walked in blocks of about a thousand elements:
// some rows of the innermost dim, or a piece of one. Per block every instruction runs one tight
// loop whose operands are registers: arrays without gaps that stay in the L1 cache. A load without
// gaps is its own register (no copy), and so is the last writer of an output that overlaps no
// input. Everything that an instruction derives from the position (loads, stores, indices, masks,
// random counters) is affine in the index, so all of them are operands of one loop nest with
// strides of their own.
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/pointwise_interpreter.h"
#include "kernels/pointwise.h"

namespace tessera::cpu {
namespace {

/// Copies a strided operand into a register without gaps.
template <class T>
void gather_rows(const T* from, const Place& p, const Extent& e, T* to) {
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
void scatter_rows(const T* from, const Place& p, const Extent& e, T* to) {
  for (int64_t r = 0; r < e.rows; ++r, to += p.outer, from += e.n) {
    if (p.inner == 1) {
      std::memcpy(to, from, static_cast<size_t>(e.n) * sizeof(T));
    } else {
      for (int64_t i = 0; i < e.n; ++i) to[i * p.inner] = from[i];
    }
  }
}

}  // namespace

void Pointwise::run() {
  if (nest_.elements() == 0) return;
  refill(false);
  for (Op& op : code_) op.filled_from = nullptr;
  const int outer = std::max(0, nest_.rank() - 2);
  std::array<int64_t, kMaxDims> index{};
  int d = 0;
  do {
    run_plane();
    for (d = outer - 1; d >= 0; --d) {
      advance(d, 1);
      if (++index[d] < nest_.sizes[d]) break;
      advance(d, -nest_.sizes[d]);
      index[d] = 0;
    }
  } while (d >= 0);
#if defined(__SSE2__)
  _mm_sfence();  // streamed stores are visible to other ranks before the step ends
#endif
}

void Pointwise::run_plane() {
  const int rank = nest_.rank();
  const int64_t n1 = rank > 1 ? nest_.sizes[rank - 2] : 1;
  const int64_t n0 = rank > 0 ? nest_.sizes[rank - 1] : 1;
  for (int64_t i = 0; i < n1; i += block_.rows) {
    const int64_t rows = std::min(block_.rows, n1 - i);
    for (int64_t j = 0; j < n0; j += block_.n) {
      const int64_t n = std::min(block_.n, n0 - j);
      run_block({rows, n});
      if (rank > 0) advance(rank - 1, n);
    }
    if (rank > 0) advance(rank - 1, -n0);
    if (rank > 1) advance(rank - 2, rows);
  }
  if (rank > 1) advance(rank - 2, -n1);
}

void Pointwise::run_block(const Extent& e) {
  const Extent row{1, e.rows};  // of numbers per row
  for (const int i : walked_) {
    Op& op = code_[i];
    const Instr& instr = op.instr;
    const Extent& mine = op.spread == Spread::per_row ? row : e;
    switch (instr.code) {
      case Code::load:
        run_load(op, regs_[i], mine);
        break;
      case Code::index:
        run_index(op, mine);
        break;
      case Code::random:
        run_random(op, regs_[i], e);
        break;
      case Code::mask:
        run_mask(op, regs_[i], mine);
        break;
      case Code::row_sum:
      case Code::row_prod:
      case Code::row_max:
      case Code::row_min:
        if (op.chain) {
          run_chain(op, op.buffer, e);
        } else {
          op.row_fn(code_[instr.a].full ? code_[instr.a].full : regs_[instr.a], op.buffer, e.rows,
                    e.n);
        }
        break;
      default: {
        if (op.alias) {
          regs_[i] = regs_[instr.a];
          break;
        }
        void* out = place_of(op);
        regs_[i] = out;
        if (op.fetches) {
          compute_and_fetch(op, out, e);
        } else {
          compute(op, out, mine);
        }
      }
    }
    if (op.full != nullptr) expand(op, regs_[i], e);
  }
  for (size_t k = 0; k < outputs_.size(); ++k) {
    const Output& out = outputs_[k];
    if (out.direct) continue;
    if (out.once_a_row) {
      store_rows(out, static_cast<int>(k), e);
    } else {
      const Op& op = code_[out.reg];
      store(op.full ? op.full : regs_[out.reg], out.place, static_cast<int>(k), e);
    }
  }
}

/// An instruction on elements, from element `first` of the operands on.
void Pointwise::compute(const Op& op, void* out, const Extent& e, int64_t first) const {
  if (op.chain) return run_chain(op, out, e, first);
  const auto from = [&](int reg) -> const void* {
    if (reg < 0) return nullptr;
    return static_cast<const char*>(operand(op, reg)) +
           first * size_of(stored_as(code_[reg].instr.dtype));
  };
  const Instr& instr = op.instr;
  op.fn({from(instr.a), from(instr.b), from(instr.c), out, e.elements(), e.n});
}

/// The same piece by piece, between which a piece of the next block is asked for.
void Pointwise::compute_and_fetch(const Op& op, void* out, const Extent& e) const {
  constexpr int64_t kPiece = 128, kLine = 64;
  const int64_t item = size_of(stored_as(op.instr.dtype));
  for (int64_t first = 0; first < e.elements(); first += kPiece) {
    const int64_t n = std::min(kPiece, e.elements() - first);
    for (const int load : fetched_) {
      const Op& source = code_[load];
      const int64_t bytes = size_of(source.arg->dtype);
      const char* next = static_cast<const char*>(source.arg->data) +
                         (offsets_[source.place.operand] + e.elements() + first) * bytes;
      for (int64_t at = 0; at < n * bytes; at += kLine) __builtin_prefetch(next + at);
    }
    compute(op, static_cast<char*>(out) + first * item, {1, n}, first);
  }
}

/// Where the result of an instruction on elements lies.
void* Pointwise::place_of(const Op& op) const {
  if (op.output < 0) return op.buffer;
  const TensorArg& target = args_.out[op.output];
  return static_cast<char*>(target.data) + offsets_[op.output] * size_of(target.dtype);
}

/// A register as `reader` wants it: by element, or per row.
const void* Pointwise::operand(const Op& reader, int reg) const {
  if (reg < 0) return nullptr;
  const bool by_element =
      reader.spread == Spread::full && reg != reader.by_row && code_[reg].full != nullptr;
  return by_element ? code_[reg].full : regs_[reg];
}

/// Repeats the numbers of a register along their rows.
void Pointwise::expand(const Op& op, const void* reg, const Extent& e) {
  with_type(op.instr.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* from = static_cast<const T*>(reg);
    T* to = reinterpret_cast<T*>(op.full);
    for (int64_t r = 0; r < e.rows; ++r, to += e.n) std::fill(to, to + e.n, from[r]);
  });
}

void Pointwise::store_rows(const Output& out, int number, const Extent& e) {
  const Place place{out.place.operand, out.place.outer, 0};
  const Op& op = code_[out.reg];
  const void* from = regs_[out.reg];
  if (op.spread == Spread::full) {  // equal along the row: the first element counts
    with_type(op.instr.dtype, [&](auto zero) {
      using T = decltype(zero);
      T* to = reinterpret_cast<T*>(scratch_);
      for (int64_t r = 0; r < e.rows; ++r) to[r] = static_cast<const T*>(from)[r * e.n];
    });
    from = scratch_;
  }
  store(from, place, number, {1, e.rows});
}

void Pointwise::run_load(Op& op, const void*& reg, const Extent& e) {
  const Place& p = op.place;
  const char* from =
      static_cast<const char*>(op.arg->data) + offsets_[p.operand] * size_of(op.arg->dtype);
  const bool narrow = is_narrow(op.arg->dtype);
  reg = op.buffer;  // an earlier block, of fewer rows, may have been read in place
  if (p.dense(e)) {
    if (narrow) {
      ops_.widen(op.arg->dtype)({from, nullptr, nullptr, op.buffer, e.elements()});
    } else if (op.copied) {
      std::memcpy(op.buffer, from, static_cast<size_t>(e.elements() * size_of(op.arg->dtype)));
    } else {
      reg = from;
    }
    return;
  }
  if (e.rows == 1 ? p.inner == 0 : p.outer == 0) {  // what repeats may be there already
    if (op.filled_from == from && op.filled >= e.elements()) return;
    op.filled_from = from;
    op.filled = e.elements();
  }
  if (narrow) {
    uint16_t* packed = reinterpret_cast<uint16_t*>(scratch_);
    gather_rows(reinterpret_cast<const uint16_t*>(from), p, e, packed);
    ops_.widen(op.arg->dtype)({packed, nullptr, nullptr, op.buffer, e.elements()});
    return;
  }
  with_type(op.instr.dtype, [&](auto zero) {
    using T = decltype(zero);
    gather_rows(reinterpret_cast<const T*>(from), p, e, reinterpret_cast<T*>(op.buffer));
  });
}

void Pointwise::run_index(Op& op, const Extent& e) {
  const int64_t first = values_[op.instr.expr] + offsets_[op.place.operand];
  with_type(op.instr.dtype, [&](auto zero) {
    using T = decltype(zero);
    T* out = reinterpret_cast<T*>(op.buffer);
    for (int64_t r = 0; r < e.rows; ++r) {
      const int64_t start = first + r * op.place.outer;
      for (int64_t i = 0; i < e.n; ++i) *out++ = static_cast<T>(start + i * op.place.inner);
    }
    if constexpr (std::is_same_v<T, float>) {
      const bool round = is_narrow(op.instr.dtype);
      for (T* x = out - e.elements(); round && x != out; ++x) *x = rounded_to(*x, op.instr.dtype);
    }
  });
}

/// Runs of consecutive logical indices take whole Philox counters; the register starts at the word
/// of the first one.
void Pointwise::run_random(Op& op, const void*& reg, const Extent& e) {
  const Instr& instr = op.instr;
  const uint64_t seed = static_cast<uint64_t>(values_[instr.expr]);
  const uint64_t stream = static_cast<uint64_t>(values_[instr.expr + 1]);
  const size_t rank = args_.out[0].sizes.size();
  int64_t first = offsets_[op.place.operand];
  for (size_t d = 0; d < rank; ++d) {
    first += values_[instr.expr + 2 + 2 * d] * values_[instr.expr + 3 + 2 * d];
  }
  auto words = [&](int64_t* out, int64_t start, int64_t n) {
    const int64_t skip = start & 3;
    ops_.random(out, static_cast<uint64_t>(start) >> 2, stream, seed, (skip + n + 3) / 4);
    return out + skip;
  };
  int64_t* out = reinterpret_cast<int64_t*>(op.buffer);
  if (op.place.dense(e)) {
    reg = words(out, first, e.elements());
    return;
  }
  reg = out;
  for (int64_t r = 0; r < e.rows; ++r, out += e.n) {
    const int64_t start = first + r * op.place.outer;
    int64_t* row = reinterpret_cast<int64_t*>(scratch_);
    if (op.place.inner == 1) {
      const int64_t* from = words(row, start, e.n);
      std::copy(from, from + e.n, out);
      continue;
    }
    for (int64_t i = 0; i < e.n; ++i) {
      out[i] = *words(row, start + i * op.place.inner, 1);
    }
  }
}

/// A block that is kept whole is its operand's array.
void Pointwise::run_mask(Op& op, const void*& reg, const Extent& e) {
  const Place& p = op.place;
  const int64_t value = values_[op.instr.expr];
  const int64_t first = op.instr.slot < 0 ? (value != 0 ? -1 : 0) : offsets_[p.operand];
  const int64_t limit = op.instr.slot < 0 ? 0 : value;
  const int64_t last = first + (e.rows - 1) * p.outer + (e.n - 1) * p.inner;
  if (last < limit) {
    reg = operand(op, op.instr.a);
    return;
  }
  reg = op.buffer;
  with_type(op.instr.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* from = static_cast<const T*>(operand(op, op.instr.a));
    T* out = reinterpret_cast<T*>(op.buffer);
    T other = formula::cast<T>(op.instr.imm);
    if (op.instr.dtype == DType::bool_) other = T(op.instr.imm != 0);
    if constexpr (std::is_same_v<T, float>) {
      other = rounded_to(other, op.instr.dtype);
    }
    for (int64_t r = 0; r < e.rows; ++r, from += e.n, out += e.n) {
      const int64_t left = limit - first - r * p.outer;  // how many positions are below the limit
      const int64_t kept = p.inner > 0 ? std::clamp<int64_t>(left, 0, e.n) : (left > 0 ? e.n : 0);
      std::copy(from, from + kept, out);
      std::fill(out + kept, out + e.n, other);
    }
  });
}

void Pointwise::store(const void* from, const Place& place, int number, const Extent& e) {
  const TensorArg& target = args_.out[number];
  const bool stream = outputs_[number].stream;
  char* to = static_cast<char*>(target.data) + offsets_[number] * size_of(target.dtype);
  if (is_narrow(target.dtype)) {
    const BlockFn narrow = ops_.narrow(target.dtype);
    if (place.dense(e)) return narrow({from, nullptr, nullptr, to, e.elements()});
    uint16_t* packed = reinterpret_cast<uint16_t*>(scratch_ + capacity_ * 4);
    narrow({from, nullptr, nullptr, packed, e.elements()});
    return scatter_rows(packed, place, e, reinterpret_cast<uint16_t*>(to));
  }
  with_type(target.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* x = static_cast<const T*>(from);
    if (place.dense(e) && stream) {
      ops_.stream(to, x, e.elements() * static_cast<int64_t>(sizeof(T)));
    } else if (place.dense(e)) {
      std::memcpy(to, x, static_cast<size_t>(e.elements()) * sizeof(T));
    } else {
      scatter_rows(x, place, e, reinterpret_cast<T*>(to));
    }
  });
}

}  // namespace tessera::cpu
