// Failures and memory of ranks that see each other's memory.
//
// A failure is written once, by compare-and-swap of the alarm's state, so all ranks of the world
// report the same first cause. Cells and blocks are carved from slabs that live as long as the
// world. A slow peer may read a cell after its owner is done with it, so a cell is never unmapped
// or reset. It is reused once the gate of its last rendezvous shows that all ranks have left.
#include "collectives/peer_memory.h"

#include <chrono>
#include <thread>

#include "base/fail.h"

namespace tessera {

std::string describe(const Call& call) {
  std::string text = fmt::format("[{}]", to_string(call.kind));
  if (call.site.number >= 0) text += fmt::format(" call {}", call.site.number);
  if (!call.site.text.empty()) text += fmt::format(" ({})", call.site.text);
  if (call.preparing) text += " while it is prepared";
  return text;
}

void Fabric::raise(const std::string& message) {
  uint32_t none = 0;
  if (!alarm().state.compare_exchange_strong(none, 1)) return;
  alarm().rank.store(rank_, std::memory_order_relaxed);
  alarm().text.store(message);
  alarm().state.store(2);
}

void Fabric::throw_failure(const Call& call) {
  failed();
  // Another rank may be writing the text right now, or may have died doing so.
  for (int i = 0; i < 100 && alarm().state.load(std::memory_order_acquire) != 2; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const int culprit = alarm().rank.load(std::memory_order_relaxed);
  const std::string message = alarm().text.load();
  if (culprit == rank_) {
    fail(ErrorKind::comm, "{}: rank {} has failed before: {}", describe(call), rank_, message);
  }
  throw PeerFailure(ErrorKind::comm, fmt::format("{}: rank {} stops because rank {} failed: {}",
                                                 describe(call), rank_, culprit, message));
}

void Fabric::note(const Call& call) {
  Status& mine = *status(rank_);
  mine.number.store(call.site.number, std::memory_order_relaxed);
  mine.kind.store(1 + static_cast<uint32_t>(call.kind), std::memory_order_relaxed);
  mine.preparing.store(call.preparing, std::memory_order_relaxed);
  mine.text.store(call.site.text);
}

std::string Fabric::whereabouts(int rank) {
  const Status* seen = status(rank);
  if (!seen) return fmt::format("rank {}{}", rank, place(rank));
  const uint32_t kind = seen->kind.load(std::memory_order_relaxed);
  if (kind == 0) return fmt::format("rank {}{} (never seen)", rank, place(rank));
  Call last;
  last.kind = static_cast<CollectiveKind>(kind - 1);
  last.preparing = seen->preparing.load(std::memory_order_relaxed) != 0;
  last.site = {seen->number.load(std::memory_order_relaxed), seen->text.load()};
  return fmt::format("rank {}{} (last seen at {})", rank, place(rank), describe(last));
}

void Fabric::throw_timeout(const Call& call, double seconds, const std::vector<int>& missing) {
  std::string names;
  constexpr size_t kShown = 8;
  for (size_t i = 0; i < missing.size() && i < kShown; ++i) {
    names += (i == 0 ? "" : ", ") + whereabouts(missing[i]);
  }
  if (missing.size() > kShown) names += fmt::format(" and {} more", missing.size() - kShown);
  const std::string message = fmt::format(
      "{}: rank {}{} waited {:.3g} s for {}; a rank hangs, has died or makes other calls; if it is "
      "only "
      "slow, raise the time-out with set_timeout",
      describe(call), rank_, place(rank_), seconds, names);
  give_up(call, message);
}

void Fabric::give_up(const Call& call, const std::string& message) {
  raise(message);
  // Ranks that wait for the same one notice at the same time; the first one's message is used.
  if (alarm().rank.load() != rank_ || alarm().state.load() != 2) throw_failure(call);
  throw Error(ErrorKind::comm, message);
}

void Fabric::check_alive(const Call& call, const std::vector<int>& missing) {
  for (const int rank : missing) {
    if (alive(rank)) continue;
    const std::string message = fmt::format(
        "{}: rank {}{} waits for {}, but that process is gone; see what it, or its launcher, "
        "printed "
        "last",
        describe(call), rank_, place(rank_), whereabouts(rank));
    give_up(call, message);
  }
}

}  // namespace tessera
