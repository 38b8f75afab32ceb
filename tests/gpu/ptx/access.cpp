// Loads, stores, atomics, parameters, and copies into shared memory.
#include <fmt/format.h>

#include <algorithm>

#include "gpu/ptx/forms.h"
#include "gpu/ptx/map.h"
#include "gpu/ptx/syntax.h"

namespace tessera::test::ptx {

namespace {

/// ld.v4: results r[0] .. r[3], the address behind them.
template <class T>
void load(Warp& w, const Instruction& i) {
  const auto bytes = static_cast<uint32_t>(sizeof(T) * i.count);
  w.each([&](unsigned lane) {
    const std::byte* from = w.reach(i, w.address(i, i.count, lane), lane, bytes, Use::read);
    for (unsigned k = 0; k < i.count; ++k) {
      T x;
      std::memcpy(&x, from + k * sizeof(T), sizeof(T));
      w.set_extended(i.r[k], lane, x);
    }
  });
}

/// st.v4: the address, then the values.
template <class T>
void store(Warp& w, const Instruction& i) {
  const auto bytes = static_cast<uint32_t>(sizeof(T) * i.count);
  w.each([&](unsigned lane) {
    std::byte* to = w.reach(i, w.address(i, 0, lane), lane, bytes, Use::write);
    for (unsigned k = 0; k < i.count; ++k)
      std::memcpy(to + k * sizeof(T), w.storage(i.r[k + 1], lane), sizeof(T));
  });
}

enum class Atomic : uint8_t { add, min, max, exchange, compare, bit_and, bit_or, bit_xor };

template <Atomic kWhat, class T>
T combined(T old, T b, T c) {
  switch (kWhat) {
    case Atomic::add:
      return static_cast<T>(old + b);
    case Atomic::min:
      return std::min(old, b);
    case Atomic::max:
      return std::max(old, b);
    case Atomic::exchange:
      return b;
    case Atomic::compare:
      return old == b ? c : old;
    default:
      break;
  }
  if constexpr (std::numeric_limits<T>::is_integer) {
    return kWhat == Atomic::bit_and ? old & b : kWhat == Atomic::bit_or ? old | b : old ^ b;
  }
  return old;
}

/// atom: the result, the address, operands; red (i.count 0): no result. One lane after the other;
/// kernels of other ranks may run beside it.
template <Atomic kWhat, class T, class Word>
void atomic(Warp& w, const Instruction& i) {
  const unsigned at = i.count;
  w.each([&](unsigned lane) {
    auto* to =
        reinterpret_cast<Word*>(w.reach(i, w.address(i, at, lane), lane, sizeof(T), Use::atomic));
    const T b = w.lanes<T>(i.r[at + 1])[lane],
            c = kWhat == Atomic::compare ? w.lanes<T>(i.r[at + 2])[lane] : b;
    Word old = __atomic_load_n(to, __ATOMIC_SEQ_CST), wanted = 0;
    T before;
    do {
      std::memcpy(&before, &old, sizeof(T));
      const T after = combined<kWhat>(before, b, c);
      std::memcpy(&wanted, &after, sizeof(T));
    } while (
        !__atomic_compare_exchange_n(to, &old, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    if (i.count != 0) w.lanes<T>(i.r[0]).set(lane, before);
  });
}

template <class T, class Word>
Handler atomic_of(const Opcode& op) {
  if (op.has("add")) return atomic<Atomic::add, T, Word>;
  if (op.has("min")) return atomic<Atomic::min, T, Word>;
  if (op.has("max")) return atomic<Atomic::max, T, Word>;
  if (op.has("exch")) return atomic<Atomic::exchange, T, Word>;
  if (op.has("cas")) return atomic<Atomic::compare, T, Word>;
  if constexpr (std::numeric_limits<T>::is_integer) {
    if (op.has("and")) return atomic<Atomic::bit_and, T, Word>;
    if (op.has("or")) return atomic<Atomic::bit_or, T, Word>;
    if (op.has("xor")) return atomic<Atomic::bit_xor, T, Word>;
  }
  return nullptr;
}

}  // namespace

Handler load_of(const std::string& type) {
  if (type == "u8" || type == "b8") return load<uint8_t>;
  if (type == "s8") return load<int8_t>;
  if (type == "u16" || type == "b16") return load<uint16_t>;
  if (type == "s16") return load<int16_t>;
  if (type == "u32" || type == "b32" || type == "f32") return load<uint32_t>;
  if (type == "s32") return load<int32_t>;
  if (type == "u64" || type == "b64" || type == "f64" || type == "s64") return load<uint64_t>;
  return nullptr;
}

Handler store_of(const std::string& type) {
  switch (bytes_of_type(type)) {
    case 1:
      return store<uint8_t>;
    case 2:
      return store<uint16_t>;
    case 4:
      return store<uint32_t>;
    case 8:
      return store<uint64_t>;
    default:
      return nullptr;
  }
}

Handler find_atomic(const Opcode& op) {
  const std::string& type = op.type();
  if (type == "u32" || type == "b32") return atomic_of<uint32_t, uint32_t>(op);
  if (type == "s32") return atomic_of<int32_t, uint32_t>(op);
  if (type == "u64" || type == "b64") return atomic_of<uint64_t, uint64_t>(op);
  if (type == "s64") return atomic_of<int64_t, uint64_t>(op);
  if (type == "f32") return atomic_of<float, uint32_t>(op);
  if (type == "f64") return atomic_of<double, uint64_t>(op);
  return nullptr;
}

/// Of the kernel: addresses are bytes from the beginning of its parameters.
void load_argument(Warp& w, const Instruction& i) {
  w.each([&](unsigned lane) {
    const uint64_t at = w.address(i, i.count, lane);
    const uint64_t last = at + uint64_t{i.count} * i.bytes;
    if (last > static_cast<uint64_t>(w.program.param_bytes))
      w.fail(lane, fmt::format("it reads parameters up to byte {}; the kernel has {}", last,
                               w.program.param_bytes));
    for (unsigned k = 0; k < i.count; ++k) {
      uint64_t x = 0;
      std::memcpy(&x, static_cast<const std::byte*>(w.args) + at + k * i.bytes, i.bytes);
      std::memcpy(w.storage(i.r[k], lane), &x, i.r[k].bytes);
    }
  });
}

/// Of an inlined function: a place in the register file, r[count].
void load_param(Warp& w, const Instruction& i) {
  w.each([&](unsigned lane) {
    for (unsigned k = 0; k < i.count; ++k) {
      uint64_t x = 0;
      std::memcpy(&x, w.storage(i.r[i.count], lane) + i.number + k * i.bytes, i.bytes);
      std::memcpy(w.storage(i.r[k], lane), &x, i.r[k].bytes);
    }
  });
}
void store_param(Warp& w, const Instruction& i) {
  w.each([&](unsigned lane) {
    for (unsigned k = 0; k < i.count; ++k)
      std::memcpy(w.storage(i.r[0], lane) + i.number + k * i.bytes, w.storage(i.r[k + 1], lane),
                  i.bytes);
  });
}

/// cvta.shared, and cvta.to.shared.
void from_shared(Warp& w, const Instruction& i) {
  const auto to = w.lanes<uint64_t>(i.r[0]), from = w.lanes<uint64_t>(i.r[1]);
  w.each([&](unsigned lane) { to.set(lane, w.memory.generic_of_shared(from[lane])); });
}
void to_shared(Warp& w, const Instruction& i) {
  const auto to = w.lanes<uint64_t>(i.r[0]), from = w.lanes<uint64_t>(i.r[1]);
  w.each([&](unsigned lane) { to.set(lane, from[lane] - w.memory.generic_of_shared(0)); });
}

/// cp.async [r0], [r1], bytes, r2: so many bytes are read, zeros follow. Takes effect when the
/// thread waits, as late as can be.
void copy_async(Warp& w, const Instruction& i) {
  w.each([&](unsigned lane) {
    const uint32_t read = w.lanes<uint32_t>(i.r[2])[lane];
    if (read != 0 && read != i.bytes)
      w.fail(lane,
             fmt::format("a copy of {} bytes reads {}: all or none are supported", i.bytes, read));
    Warp::Copies& own = w.copies[lane];
    const Register& from = i.r[1];
    const auto at =
        w.lanes<uint64_t>(from)[lane] + static_cast<uint64_t>(static_cast<int32_t>(i.target));
    if (at % i.bytes != 0)
      w.fail(lane, fmt::format("an access of {} bytes is not aligned: its address is {} modulo {}",
                               i.bytes, at % i.bytes, i.bytes));
    Copy copy{w.address(i, 0, lane), nullptr, i.bytes, own.group};
    if (read != 0) copy.from = w.memory.reach(w, lane, Space::global, at, i.bytes, Use::read);
    w.memory.shared.begin_copy(w, lane, copy);
    own.under_way.push_back(copy);
  });
}
void commit_copies(Warp& w, const Instruction& /*i*/) {
  w.each([&](unsigned lane) { ++w.copies[lane].group; });
}
/// All but those of the last `number` groups; -1: all.
void wait_copies(Warp& w, const Instruction& i) {
  w.each([&](unsigned lane) {
    Warp::Copies& own = w.copies[lane];
    std::erase_if(own.under_way, [&](const Copy& c) {
      if (i.number >= 0 && c.group + i.number >= own.group) return false;
      w.memory.shared.end_copy(w, lane, c);
      return true;
    });
  });
}

/// ldmatrix: lanes 8 m .. 8 m + 7 give where the rows of matrix m begin; lane l gets of each
/// matrix row l / 4, elements 2 (l % 4) and the next one; with .trans (number 1 more) column l / 4,
/// of rows 2 (l % 4) and the next one.
void load_matrix(Warp& w, const Instruction& i) {
  const bool transposed = i.target != 0;
  uint16_t rows[kLanes][8];
  for (unsigned lane = 0; lane < 8U * i.count; ++lane)
    std::memcpy(rows[lane],
                w.memory.reach(w, lane, Space::shared, w.address(i, i.count, lane), 16, Use::read),
                16);
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const unsigned line = lane / 4, first = lane % 4 * 2;
    for (unsigned m = 0; m < i.count; ++m) {
      const uint16_t(*matrix)[8] = rows + m * 8;
      const uint32_t low = transposed ? matrix[first][line] : matrix[line][first];
      const uint32_t high = transposed ? matrix[first + 1][line] : matrix[line][first + 1];
      w.lanes<uint32_t>(i.r[m]).set(lane, low | high << 16);
    }
  }
}

}  // namespace tessera::test::ptx
