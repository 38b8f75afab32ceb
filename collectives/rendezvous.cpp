// A lock-free barrier. Rank 0's cell has two gates, which every rank of the group increments once
// per generation. A generation is complete when the gate has advanced by the group's size: one
// counter means one cache line to poll and one wake-up to send. Each rank also counts in its own
// cell, which is only read to name missing ranks. In a stream, every rank has its own gates, which
// count its generations alone.
//
// A wait first spins (only if every rank has a processor), then yields, then sleeps on a futex in
// slices. Between slices it checks for failures, dead processes and the time-out. The last rank to
// arrive wakes the sleepers, if any.
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <ctime>

#include "base/pauses.h"
#include "collectives/peer_memory.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

long futex(std::atomic<uint32_t>& word, int what, uint32_t value, const timespec* slice) {
  static_assert(sizeof(word) == 4 && std::atomic<uint32_t>::is_always_lock_free);
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), what, value, slice, nullptr, 0);
}

bool reached(const Gate& gate, uint32_t target) {
  return static_cast<int32_t>(gate.count.load(std::memory_order_acquire) - target) >= 0;
}

void arrive(Gate& gate, uint32_t target) {
  // Sequential consistency on both counters: either the sleeper sees our arrival or we see the
  // sleeper.
  if (gate.count.fetch_add(1) + 1 == target && gate.sleepers.load() != 0) {
    futex(gate.count, FUTEX_WAKE, INT32_MAX, nullptr);
  }
}

/// The same if only the caller counts, without stalling on a cache line that others poll. A rank
/// that falls asleep at this moment may miss the wake-up; it sees the count when its slice ends.
void advance(Gate& gate) {
  gate.count.store(gate.count.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  if (gate.sleepers.load(std::memory_order_relaxed) != 0) {
    futex(gate.count, FUTEX_WAKE, INT32_MAX, nullptr);
  }
}

void count_up(std::atomic<uint32_t>& mine) {
  mine.store(mine.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void sleep_at(Gate& gate, uint32_t target, double seconds) {
  timespec slice{};
  slice.tv_nsec = std::max<int64_t>(1000, static_cast<int64_t>(seconds * 1e9));
  gate.sleepers.fetch_add(1);
  const uint32_t count = gate.count.load();
  if (static_cast<int32_t>(count - target) < 0) futex(gate.count, FUTEX_WAIT, count, &slice);
  gate.sleepers.fetch_sub(1);
}

}  // namespace

Rendezvous::Rendezvous(std::shared_ptr<Fabric> fabric, std::vector<int> ranks, int me)
    : fabric_(std::move(fabric)),
      ranks_(std::move(ranks)),
      me_(me),
      own_(fabric_->pool().take_cell()) {}

Rendezvous::~Rendezvous() {
  if (begun_) {
    // Peers may be about to read operands that are being destroyed: stop them first.
    fabric_->raise("an operation was destroyed between start and wait");
    quiesce();
  }
  if (cells_.empty()) return;  // peers may know the cell, so it is not reused
  std::vector<CellPool::Goal> goals;
  const size_t gates = stream_ ? cells_.size() : 1;
  const auto arrivals = static_cast<uint32_t>(stream_ ? 1 : ranks_.size());
  for (size_t q = 0; q < gates; ++q)
    goals.emplace_back(&cells_[q]->finished, tickets_[q].finished + generation_ * arrivals);
  fabric_->pool().retire(own_, std::move(held_), std::move(goals));
}

Rendezvous::Ticket Rendezvous::ticket() const {
  return {fabric_->token(own_), own_->began.load(), own_->ended.load(), own_->started.count.load(),
          own_->finished.count.load()};
}

void Rendezvous::connect(const std::vector<Ticket>& tickets) {
  tickets_ = tickets;
  missing_.reserve(tickets.size());
  for (size_t q = 0; q < tickets.size(); ++q) {
    cells_.push_back(static_cast<int>(q) == me_
                         ? own_
                         : static_cast<Cell*>(fabric_->resolve(ranks_[q], tickets[q].cell)));
  }
}

void* Rendezvous::hold(int64_t bytes) {
  void* const memory = fabric_->pool().take(bytes);
  held_.emplace_back(memory, bytes);
  return memory;
}

void Rendezvous::make_stream(std::vector<int> sources, std::vector<int> readers, uint32_t places) {
  stream_ = true;
  places_ = places;
  for (const int q : sources) sources_.push_back({q, 0});
  for (const int q : readers) readers_.push_back({q, 0});
}

void Rendezvous::await_free(const Call& call, double seconds) {
  if (generation_ < places_) return;
  for (Peer& reader : readers_) await_peer(reader, generation_ + 1 - places_, false, call, seconds);
}

void Rendezvous::begin() {
  begun_ = true;
  ++generation_;
  if (stream_) return advance(own_->started);
  count_up(own_->began);
  arrive(cells_[0]->started,
         tickets_[0].started + generation_ * static_cast<uint32_t>(ranks_.size()));
}

void Rendezvous::await_begin(const Call& call, double seconds) {
  for (Peer& source : sources_) await_peer(source, generation_, true, call, seconds);
  if (stream_) return;
  await({cells_[0]->started,
         tickets_[0].started + generation_ * static_cast<uint32_t>(ranks_.size()), true},
        call, seconds);
}

void Rendezvous::end() {
  begun_ = false;
  if (stream_) return advance(own_->finished);
  count_up(own_->ended);
  arrive(cells_[0]->finished,
         tickets_[0].finished + generation_ * static_cast<uint32_t>(ranks_.size()));
}

void Rendezvous::await_end(const Call& call, double seconds) {
  await({cells_[0]->finished,
         tickets_[0].finished + generation_ * static_cast<uint32_t>(ranks_.size()), false},
        call, seconds);
}

void Rendezvous::await_peer(Peer& peer, uint32_t generation, bool entry, const Call& call,
                            double seconds) {
  if (static_cast<int32_t>(peer.seen - generation) >= 0) return;
  Gate& gate = entry ? cells_[peer.index]->started : cells_[peer.index]->finished;
  const uint32_t before = entry ? tickets_[peer.index].started : tickets_[peer.index].finished;
  await({gate, before + generation, entry, peer.index}, call, seconds);
  peer.seen = gate.count.load(std::memory_order_acquire) - before;
}

const std::vector<int>& Rendezvous::missing(const Wait& wait) {
  missing_.clear();
  if (wait.peer >= 0) {
    if (!reached(wait.gate, wait.target)) missing_.push_back(ranks_[wait.peer]);
    return missing_;
  }
  for (size_t q = 0; q < cells_.size(); ++q) {
    const uint32_t seen =
        wait.entry ? cells_[q]->began.load(std::memory_order_relaxed) - tickets_[q].began
                   : cells_[q]->ended.load(std::memory_order_relaxed) - tickets_[q].ended;
    if (static_cast<int32_t>(seen - generation_) < 0) missing_.push_back(ranks_[q]);
  }
  return missing_;
}

void Rendezvous::await(const Wait& wait, const Call& call, double seconds) {
  Gate& gate = wait.gate;
  const uint32_t target = wait.target;
  constexpr int kFewestSpins = 10, kMostSpins = 500;
  constexpr double kYielding = 200e-6, kLookForDead = 0.02, kLongestSleep = 0.01;
  if (reached(gate, target)) return;
  if (!fabric_->crowded()) {
    // After spinning in vain, spin less: the other rank may need this processor.
    for (int i = 0; i < kFewestSpins + spins_; ++i) {
      pause_briefly();
      if (!reached(gate, target)) continue;
      spins_ = std::min(kMostSpins, 2 * spins_ + kFewestSpins);
      return;
    }
    spins_ /= 2;
  }
  const Clock::time_point start = Clock::now();
  Pauses pauses;
  double waited = 0, slice = 0.0005, look = kLookForDead;
  for (;;) {
    fabric_->poll();
    if (reached(gate, target)) return;
    fabric_->check(call);
    if (waited < kYielding) {
      sched_yield();
    } else {
      sleep_at(gate, target, slice);
      slice = std::min(kLongestSleep, slice * 1.5);
    }
    waited = std::min(seconds_since(start), pauses.running(kLongestSleep));
    if (waited > look || waited + kLookForDead < look) {
      look = waited + kLookForDead;
      fabric_->check_alive(call, missing(wait));
    }
    if (waited < seconds || reached(gate, target)) continue;
    const std::vector<int>& names = missing(wait);
    if (!names.empty()) fabric_->throw_timeout(call, seconds, names);
  }
}

void Rendezvous::enter(const Call& call) {
  // Sequentially consistent with raise() and quiesce(): of a failing and an entering rank, at least
  // one sees the other.
  own_->busy.store(1);
  if (fabric_->alarm().state.load() == 0) return;
  leave();
  fabric_->check(call);
}

void Rendezvous::leave() { own_->busy.store(0); }

void Rendezvous::quiesce() noexcept {
  constexpr double kLongestCopy = 10;  // seconds; in case a process was killed inside
  const Clock::time_point start = Clock::now();
  for (size_t q = 0; q < cells_.size(); ++q) {
    while (cells_[q]->busy.load() != 0 && fabric_->alive(ranks_[q]) &&
           seconds_since(start) < kLongestCopy) {
      sched_yield();
    }
  }
}

}  // namespace tessera
