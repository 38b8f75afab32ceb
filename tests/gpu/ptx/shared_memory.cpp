#include "gpu/ptx/shared_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "gpu/ptx/warp.h"

namespace tessera::test::ptx {

namespace {

constexpr std::align_val_t kAlign{128};
constexpr int32_t of_warp(int32_t thread) { return -2 - thread / static_cast<int32_t>(kLanes); }

}  // namespace

SharedMemory::SharedMemory(const Program& program)
    : program_(program),
      bytes_(new (kAlign)
                 std::byte[static_cast<size_t>(std::max<int64_t>(program.shared_bytes, 1))]),
      shadow_(static_cast<size_t>(program.shared_bytes)) {}

void SharedMemory::Free::operator()(std::byte* x) const { operator delete[](x, kAlign); }

std::string SharedMemory::name_of(uint64_t address) const {
  for (const Program::Region& v : program_.shared) {
    const auto at = static_cast<int64_t>(address) - v.first;
    if (at >= 0 && at < v.bytes) return fmt::format("byte {} of '{}'", at, v.name);
  }
  return fmt::format("byte {}", address);
}

void SharedMemory::check_place(const Warp& w, unsigned lane, uint64_t address,
                               uint32_t bytes) const {
  for (const Program::Region& v : program_.shared) {
    const auto at = static_cast<int64_t>(address) - v.first;
    if (at >= 0 && at + bytes <= v.bytes) return;
  }
  std::string all;
  for (const Program::Region& v : program_.shared)
    all +=
        fmt::format("{} '{}' [{}, {})", all.empty() ? "" : ",", v.name, v.first, v.first + v.bytes);
  w.fail(lane, fmt::format("{} bytes of shared memory at {} are not in one of its variables:{}",
                           bytes, static_cast<int64_t>(address), all.empty() ? " none" : all));
}

bool SharedMemory::is_before(const Warp& w, unsigned lane, const Access& earlier) const {
  if (earlier.epoch < epoch_) return true;
  const auto me = static_cast<int32_t>(w.thread(lane));
  if (earlier.thread == me) return true;
  if (earlier.thread == kSeveral) return false;
  const int32_t warp = earlier.thread < kSeveral ? earlier.thread : of_warp(earlier.thread);
  return warp == of_warp(me) && earlier.meeting < w.meetings[lane];
}

void SharedMemory::conflict(const Warp& w, unsigned lane, const char* now, const char* before,
                            const Access& earlier, uint64_t address) const {
  const std::string who = earlier.thread >= 0 ? fmt::format("thread {}", earlier.thread)
                          : earlier.thread == kSeveral
                              ? "threads of several warps"
                              : fmt::format("threads of warp {}", -2 - earlier.thread);
  w.fail(lane, fmt::format("a race: it {} {} of shared memory, which {} {} since the last barrier",
                           now, name_of(address), who, before));
}

/// Keeps what a later write has to be ordered behind: the last reader, unless others read beside
/// it.
void SharedMemory::note_read(const Warp& w, unsigned lane, Byte& byte) const {
  const auto me = static_cast<int32_t>(w.thread(lane));
  Access& r = byte.read;
  if (r.epoch == epoch_ && r.thread != me) {
    const int32_t warp = r.thread < kSeveral ? r.thread : of_warp(r.thread);
    if (r.thread == kSeveral || warp != of_warp(me)) {
      r.thread = kSeveral;
      return;
    }
    if (r.meeting == w.meetings[lane]) {
      r.thread = warp;
      return;
    }
  }
  r = {epoch_, w.meetings[lane], me};
}

std::byte* SharedMemory::reach(const Warp& w, unsigned lane, uint64_t address, uint32_t bytes,
                               Use use) {
  check_place(w, lane, address, bytes);
  const auto me = static_cast<int32_t>(w.thread(lane));
  for (uint64_t a = address; a < address + bytes; ++a) {
    Byte& b = shadow_[a];
    if (b.under_way)
      w.fail(lane, fmt::format("{} of shared memory is being copied by thread {}, which has not "
                               "waited for it",
                               name_of(a), b.write.thread));
    const char* now = use == Use::read ? "reads" : "writes";
    if (!is_before(w, lane, b.write) && !(use == Use::atomic && b.atomic))
      conflict(w, lane, now, "wrote", b.write, a);
    if (use != Use::write) {
      if (b.write.epoch < first_epoch_)
        w.fail(lane, fmt::format("it reads {} of shared memory, which no thread of the block wrote",
                                 name_of(a)));
      if (use == Use::read) note_read(w, lane, b);
    }
    if (use != Use::read) {
      if (!is_before(w, lane, b.read)) conflict(w, lane, now, "read", b.read, a);
      b.write = {epoch_, w.meetings[lane], me};
      b.atomic = use == Use::atomic;
    }
  }
  return bytes_.get() + address;
}

void SharedMemory::begin_copy(const Warp& w, unsigned lane, const Copy& copy) {
  std::memset(reach(w, lane, copy.to, copy.bytes, Use::write), 0xff, copy.bytes);
  for (uint64_t a = copy.to; a < copy.to + copy.bytes; ++a) shadow_[a].under_way = true;
}

void SharedMemory::end_copy(const Warp& w, unsigned lane, const Copy& copy) {
  for (uint64_t a = copy.to; a < copy.to + copy.bytes; ++a) shadow_[a].under_way = false;
  std::byte* to = reach(w, lane, copy.to, copy.bytes, Use::write);
  if (copy.from == nullptr) {
    std::memset(to, 0, copy.bytes);
  } else {
    std::memcpy(to, copy.from, copy.bytes);
  }
}

}  // namespace tessera::test::ptx
