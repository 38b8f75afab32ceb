// The shared memory of a block. A shadow of each byte remembers who wrote and who read it since the
// last barrier, so that a conflict is found in whatever order the emulated threads happen to run.
#pragma once

#include <memory>
#include <vector>

#include "gpu/ptx/program.h"

namespace tessera::test::ptx {

enum class Use : uint8_t { read, write, atomic };

/// Of cp.async, from when it was issued until the thread waits for it.
struct Copy {
  uint64_t to = 0;                  ///< in shared memory
  const std::byte* from = nullptr;  ///< null: zeros
  uint32_t bytes = 0, group = 0;
};

class SharedMemory {
 public:
  explicit SharedMemory(const Program& program);
  SharedMemory(const SharedMemory&) = delete;

  /// Of the next block, which nobody has written.
  void begin_block() { first_epoch_ = ++epoch_; }
  /// All threads of the block met.
  void barrier() { ++epoch_; }

  /// Throws if the bytes are not all of one variable, were not written in this block, belong to a
  /// copy under way, or another thread's access is not ordered before.
  std::byte* reach(const Warp& w, unsigned lane, uint64_t address, uint32_t bytes, Use use);
  /// The bytes may not be touched until the thread has waited for the copy, nor by other threads
  /// until a barrier behind that.
  void begin_copy(const Warp& w, unsigned lane, const Copy& copy);
  void end_copy(const Warp& w, unsigned lane, const Copy& copy);

  uint64_t generic() const { return reinterpret_cast<uint64_t>(bytes_.get()); }
  bool contains(uint64_t generic_address) const {
    return generic_address - generic() < static_cast<uint64_t>(program_.shared_bytes);
  }

 private:
  /// Who touched a byte last, and when: at a thread's `meeting` with its warp, between the barriers
  /// of an epoch.
  struct Access {
    uint32_t epoch = 0, meeting = 0;
    int32_t thread = -1;  ///< kSeveral: of several warps; -2 - warp: several of one warp
  };
  struct Byte {
    Access write, read;
    bool atomic = false, under_way = false;
  };
  static constexpr int32_t kSeveral = -1;

  void check_place(const Warp& w, unsigned lane, uint64_t address, uint32_t bytes) const;
  /// Of the thread of a lane that touches the byte now.
  bool is_before(const Warp& w, unsigned lane, const Access& earlier) const;
  void note_read(const Warp& w, unsigned lane, Byte& byte) const;
  [[noreturn]] void conflict(const Warp& w, unsigned lane, const char* now, const char* before,
                             const Access& earlier, uint64_t address) const;
  std::string name_of(uint64_t address) const;

  const Program& program_;
  struct Free {
    void operator()(std::byte* x) const;
  };
  std::unique_ptr<std::byte[], Free> bytes_;  ///< aligned for every access
  std::vector<Byte> shadow_;
  uint32_t epoch_ = 0, first_epoch_ = 0;
};

}  // namespace tessera::test::ptx
