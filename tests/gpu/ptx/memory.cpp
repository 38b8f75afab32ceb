#include "gpu/ptx/memory.h"

#include <fmt/format.h>

#include "gpu/ptx/warp.h"

namespace tessera::test::ptx {

Memory::Memory(const Program& program, const KernelMemory* given, unsigned threads)
    : shared(program),
      program_(program),
      given_(given),
      local_(static_cast<size_t>(program.local_bytes) * threads) {}

bool Memory::holds(const std::vector<CudaRange>& all, uint64_t address, uint32_t bytes) {
  for (const CudaRange& r : all) {
    const uint64_t at = address - reinterpret_cast<uint64_t>(r.first);
    if (at < static_cast<uint64_t>(r.bytes) && at + bytes <= static_cast<uint64_t>(r.bytes))
      return true;
  }
  return false;
}

std::string Memory::nearest(uint64_t address) const {
  std::string found = "it was given none";
  uint64_t least = ~uint64_t{0};
  const auto look = [&](const std::vector<CudaRange>& all, const char* what) {
    for (const CudaRange& r : all) {
      const auto first = reinterpret_cast<uint64_t>(r.first);
      const uint64_t at = address - first, bytes = static_cast<uint64_t>(r.bytes);
      const bool is_before = address < first;
      const uint64_t away = is_before ? first - address : at < bytes ? 0 : at - bytes + 1;
      if (away >= least) continue;
      least = away;
      found = is_before ? fmt::format("{} bytes before {} that it {}", away, bytes, what)
                        : fmt::format("at byte {} of {} that it {}", at, bytes, what);
    }
  };
  look(given_->reads, "reads");
  look(given_->writes, "writes");
  look(given_->atomics, "shares");
  return found;
}

void Memory::check_global(const Warp& w, unsigned lane, Space space, uint64_t address,
                          uint32_t bytes, Use use) {
  if (given_ == nullptr) return;
  Known& known = known_[static_cast<size_t>(use)];
  if (space != Space::read_only && address >= known.first && address + bytes <= known.last) return;
  const auto good = [&](const std::vector<CudaRange>& all) {
    for (const CudaRange& r : all) {
      const auto first = reinterpret_cast<uint64_t>(r.first);
      const uint64_t last = first + static_cast<uint64_t>(r.bytes);
      if (address < first || address + bytes > last) continue;
      known = {first, last};
      return true;
    }
    return false;
  };
  if (space == Space::read_only && holds(given_->writes, address, bytes) &&
      !holds(given_->reads, address, bytes))
    w.fail(lane, "it reads by the read-only cache what the kernel writes");
  if (good(given_->writes) || good(given_->atomics)) return;
  if (use == Use::read && good(given_->reads)) return;
  if (use == Use::read) {
    for (const Program::Region& v : program_.globals) {
      const uint64_t at = address - static_cast<uint64_t>(v.first);
      if (at < static_cast<uint64_t>(v.bytes) && at + bytes <= static_cast<uint64_t>(v.bytes))
        return;
    }
  }
  w.fail(lane, fmt::format("it {} {} bytes outside of the memory that the kernel was given: {}",
                           use == Use::read ? "reads" : "writes", bytes, nearest(address)));
}

std::byte* Memory::reach(const Warp& w, unsigned lane, Space space, uint64_t address,
                         uint32_t bytes, Use use) {
  if (address % bytes != 0)
    w.fail(lane, fmt::format("an access of {} bytes is not aligned: its address is {} modulo {}",
                             bytes, address % bytes, bytes));
  if (space == Space::generic && shared.contains(address)) {
    space = Space::shared;
    address -= shared.generic();
  }
  if (space == Space::shared) return shared.reach(w, lane, address, bytes, use);
  const auto local = static_cast<uint64_t>(program_.local_bytes);
  const uint64_t in_local = address - local_of(w.thread(lane));
  const bool is_local = address - local_of(0) < local_.size();
  if (space == Space::local || is_local) {
    if (in_local >= local || in_local + bytes > local)
      w.fail(lane, fmt::format("{} bytes of local memory at {}; a thread has {}", bytes,
                               static_cast<int64_t>(in_local), local));
  } else {
    check_global(w, lane, space, address, bytes, use);
  }
  return reinterpret_cast<std::byte*>(address);
}

}  // namespace tessera::test::ptx
