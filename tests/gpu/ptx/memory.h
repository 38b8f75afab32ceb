// Memory outside of registers that the threads of a launch touch. Throws where an access is not
// aligned, outside of what the kernel was given, or in conflict with another thread's.
#pragma once

#include <vector>

#include "gpu/host_kernels.h"
#include "gpu/ptx/program.h"
#include "gpu/ptx/shared_memory.h"

namespace tessera::test::ptx {

class Memory {
 public:
  /// `given`: null where any memory of the host is allowed.
  Memory(const Program& program, const KernelMemory* given, unsigned threads);

  /// The memory behind an address for a lane of the warp.
  std::byte* reach(const Warp& w, unsigned lane, Space space, uint64_t address, uint32_t bytes,
                   Use use);

  uint64_t generic_of_shared(uint64_t address) const { return shared.generic() + address; }
  uint64_t local_of(unsigned thread) const {
    return reinterpret_cast<uint64_t>(local_.data()) +
           thread * static_cast<uint64_t>(program_.local_bytes);
  }

  SharedMemory shared;

 private:
  /// Whether `all` has it in one piece.
  static bool holds(const std::vector<CudaRange>& all, uint64_t address, uint32_t bytes);
  void check_global(const Warp& w, unsigned lane, Space space, uint64_t address, uint32_t bytes,
                    Use use);
  /// "at byte 64 of 64 that it reads".
  std::string nearest(uint64_t address) const;

  const Program& program_;
  const KernelMemory* given_;
  std::vector<std::byte> local_;
  struct Known {
    uint64_t first = 1, last = 0;
  };
  std::array<Known, 3> known_;  ///< by use: where an access was allowed before
};

}  // namespace tessera::test::ptx
