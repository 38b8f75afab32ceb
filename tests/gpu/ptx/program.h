// PTX made ready to run: one instruction after the other, functions inlined, registers as places in
// the register file of a warp.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera::test::ptx {

class Warp;
struct Instruction;

/// Executes an instruction for the active lanes of a warp.
using Handler = void (*)(Warp&, const Instruction&);

/// A register of all 32 lanes, one behind the other. A predicate is one word with a bit a lane.
struct Register {
  uint32_t at = 0;     ///< bytes from the beginning of the register file
  uint32_t bytes = 0;  ///< of a lane; 0: a predicate
};

enum class Space : uint8_t { generic, global, read_only, constant, shared, local, param };

/// Who has to be there.
enum class Flow : uint8_t {
  next,    ///< nobody else
  branch,  ///< goes on at `target`
  table,   ///< at one of `targets`
  end,     ///< the threads end
  warp,    ///< the lanes of `mask`
  block    ///< all threads of the block
};

struct Instruction {
  Handler run = nullptr;
  Flow flow = Flow::next;
  Space space = Space::generic;
  bool guarded = false, negated = false;
  bool whole_warp = false;  ///< Flow::warp: .aligned, and no lane may have ended
  uint8_t count = 0;        ///< elements of a vector, or results
  uint32_t bytes = 0;       ///< of one element in memory
  uint32_t target = 0;      ///< or the number of the table
  int64_t number = 0;       ///< added to an address; other constants of the instruction
  Register guard, mask;
  std::array<Register, 16> r;
};

/// Where an instruction stands.
struct Place {
  int line = 0;
  std::string text;
  std::string form;  ///< its opcode with what matters of its modifiers
};

struct Program {
  /// A value that every lane has, or that differs from lane to lane, in a register of its own.
  struct Value {
    enum class Kind : uint8_t {
      constant,
      thread,
      block,
      threads,
      blocks,
      lane,
      warp,
      local
    } kind = Kind::constant;
    Register to;
    uint64_t bits = 0;  ///< of a constant; local: offset in the memory of a thread
  };
  struct Region {
    std::string name;
    int64_t first = 0, bytes = 0;
  };

  std::vector<Instruction> code;
  std::vector<Place> places;  ///< of `code`
  std::vector<std::vector<uint32_t>> tables;
  std::vector<Value> values;
  uint32_t register_bytes = 0;  ///< of a warp
  int64_t param_bytes = 0, local_bytes = 0;
  int64_t shared_bytes = 0;                                    ///< with gaps between variables
  std::vector<Region> shared;                                  ///< variables by address
  std::vector<std::unique_ptr<std::vector<uint64_t>>> memory;  ///< of global variables
  std::vector<Region> globals;  ///< where they lie: addresses of the host
  int most_threads = 0;         ///< of a block; 0: any
};

/// Throws with line and instruction where something is not translated.
Program decode(const std::string& text);

}  // namespace tessera::test::ptx
