// The 32 threads of a warp while they run: registers, where each of them stands, and what it may
// touch.
#pragma once

#include <bit>
#include <cstring>
#include <limits>

#include "gpu/ptx/memory.h"
#include "gpu/ptx/program.h"

namespace tessera::test::ptx {

constexpr unsigned kLanes = 32;
constexpr uint32_t kAllLanes = ~0U;

/// A register of all lanes, as numbers of type T: its lower bytes where it is wider.
template <class T>
class Lanes {
 public:
  Lanes(std::byte* at, uint32_t bytes) : at_(at), bytes_(bytes) {}
  T operator[](unsigned lane) const {
    T x;
    std::memcpy(&x, at_ + lane * bytes_, sizeof(T));
    return x;
  }
  void set(unsigned lane, T x) const { std::memcpy(at_ + lane * bytes_, &x, sizeof(T)); }

 private:
  std::byte* at_;
  uint32_t bytes_;
};

class Warp {
 public:
  Warp(const Program& program, Memory& memory, unsigned number);

  /// Threads [32 number, ...) of a block of so many begin at the first instruction.
  void begin(int64_t block, int64_t blocks, unsigned threads, const void* args);

  /// The lanes of a register that has exactly sizeof(T) bytes: fast.
  template <class T>
  Lanes<T> lanes(Register r) const {
    return {registers_.get() + r.at, sizeof(T)};
  }
  template <class T>
  Lanes<T> lanes_of_any(Register r) const {
    return {registers_.get() + r.at, r.bytes};
  }
  uint32_t bits(Register predicate) const {
    uint32_t x;
    std::memcpy(&x, registers_.get() + predicate.at, sizeof(x));
    return x;
  }
  /// Only of active lanes.
  void set_bits(Register predicate, uint32_t x) {
    x = (bits(predicate) & ~active) | (x & active);
    std::memcpy(registers_.get() + predicate.at, &x, sizeof(x));
  }
  /// Extended with its sign, or with zeros, to the register's width.
  template <class T>
  void set_extended(Register r, unsigned lane, T x) const;

  template <class F>
  void each(F f) const {
    if (active == kAllLanes) {
      for (unsigned lane = 0; lane < kLanes; ++lane) f(lane);
    } else {
      for (uint32_t left = active; left != 0; left &= left - 1)
        f(static_cast<unsigned>(std::countr_zero(left)));
    }
  }

  /// The address that an instruction names, in register `r` of it.
  uint64_t address(const Instruction& i, unsigned r, unsigned lane) const {
    const Register& base = i.r[r];
    const uint64_t at = base.bytes == 4 ? lanes<uint32_t>(base)[lane] : lanes<uint64_t>(base)[lane];
    return at + static_cast<uint64_t>(i.number);
  }
  /// Memory of the host behind an address. Throws if it is not aligned or not allowed.
  std::byte* reach(const Instruction& i, uint64_t to, unsigned lane, uint32_t bytes, Use use) {
    return memory.reach(*this, lane, i.space, to, bytes, use);
  }
  /// Where `bytes` of a register begin, by lane: for parameters of functions.
  std::byte* storage(Register r, unsigned lane) const {
    return registers_.get() + r.at + lane * r.bytes;
  }

  unsigned thread(unsigned lane) const { return number * kLanes + lane; }
  [[noreturn]] void fail(unsigned lane, const std::string& what) const;

  const Program& program;
  Memory& memory;
  const unsigned number;
  int64_t block = 0;
  const void* args = nullptr;
  uint32_t active = 0;              ///< lanes that execute the current instruction
  uint32_t alive = 0;               ///< that have not ended
  uint32_t at_barrier = 0;          ///< that wait for the block
  uint32_t at_meeting = 0;          ///< that wait for lanes of the warp
  std::array<uint32_t, kLanes> at;  ///< the instruction of each
  const Instruction* now = nullptr;
  /// How often a lane has met others of its warp.
  std::array<uint32_t, kLanes> meetings{};
  bool carry[kLanes] = {};  ///< of add.cc

  struct Copies {  ///< of a lane
    std::vector<Copy> under_way;
    uint32_t group = 0;
  };
  std::array<Copies, kLanes> copies;

 private:
  std::unique_ptr<std::byte[]> registers_;
};

template <class T>
void Warp::set_extended(Register r, unsigned lane, T x) const {
  std::byte* to = storage(r, lane);
  if constexpr (std::numeric_limits<T>::is_integer) {
    const auto wide = static_cast<int64_t>(x);
    if (r.bytes == 2) {
      const auto y = static_cast<uint16_t>(wide);
      std::memcpy(to, &y, sizeof(y));
    } else if (r.bytes == 4) {
      const auto y = static_cast<uint32_t>(wide);
      std::memcpy(to, &y, sizeof(y));
    } else {
      std::memcpy(to, &wide, sizeof(wide));
    }
  } else {
    std::memcpy(to, &x, sizeof(T));
  }
}

}  // namespace tessera::test::ptx
