#include "cli/watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/fail.h"
#include "base/pauses.h"
#include "base/printable.h"
#include "base/threads.h"
#include "cli/signals.h"

namespace tessera::cli {

namespace {

/// When to tell, as a share of the time-out: before peers that wait for this process give up.
constexpr double kTold = 0.9;
/// Seconds beyond the time-out in which the waits of the library throw, and ranks leave their
/// steps.
constexpr double kToThrow = 1, kToLeave = 10;
constexpr size_t kFrames = 64, kFramesOfWaits = 4;

/// Not by stdio, whose lock the thread that hangs may hold.
void write_to_stderr(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = write(STDERR_FILENO, text.data() + at, text.size() - at);
    if (n <= 0) return;
    at += static_cast<size_t>(n);
  }
}

}  // namespace

Watchdog::Watchdog(const Cluster& cluster, double timeout)
    : cluster_(cluster),
      timeout_(timeout),
      thread_(gettid()),
      watcher_(start_thread("the watchdog", [this] { watch(); })) {}

Watchdog::~Watchdog() { stop(); }

void Watchdog::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

void Watchdog::set_phase(const std::string& what) {
  const std::lock_guard lock(mutex_);
  phase_ = what;
  since_ = Clock::now();
}

Watchdog::Stall Watchdog::longest() const {
  Stall longest;
  if (!phase_.empty())
    longest = {"this process is " + phase_,
               std::chrono::duration<double>(Clock::now() - since_).count()};
  const std::vector<Cluster::Activity> ranks = cluster_.activity();
  const Cluster::Activity* worst = nullptr;
  for (const Cluster::Activity& rank : ranks) {
    if (rank.seconds > (worst != nullptr ? worst->seconds : longest.seconds)) worst = &rank;
  }
  if (worst == nullptr) return longest;
  for (const Cluster::Activity& rank : ranks) {  // rather the one that the others wait for
    if (worst->waits && !rank.waits && rank.seconds > kTold * worst->seconds) worst = &rank;
  }
  return {fmt::format("rank {} is in {}", worst->rank, printable(worst->step)), worst->seconds};
}

void Watchdog::tell(const Stall& stall) {
  std::string text = fmt::format(
      "tessera watchdog: {} for {:.3g} s; the job ends after {:.3g} s (--timeout). Where process "
      "{} is{}:\n",
      stall.what, stall.seconds, timeout_, getpid(),
      step_ > 0 ? fmt::format(" in step {}", step_.load()) : "");
  const std::vector<Cluster::Activity> ranks = cluster_.activity();
  // Of many processes that wait for one, each says little.
  const bool all_wait = std::all_of(ranks.begin(), ranks.end(), [](auto& r) { return r.waits; });
  const auto add_stack = [&](int thread) {
    size_t number = 0;
    for (const std::string& frame : stacks_.of(thread)) {
      if (number < (all_wait ? kFramesOfWaits : kFrames))
        text += fmt::format("    #{} {}\n", number++, frame);
    }
  };
  bool main_is_told = false;
  for (const Cluster::Activity& rank : ranks) {
    text += fmt::format("  rank {}: {}\n", rank.rank,
                        rank.step.empty()
                            ? "between steps"
                            : fmt::format("{} for {:.3g} s", printable(rank.step), rank.seconds));
    main_is_told |= rank.thread == thread_;
    if (rank.thread != 0) add_stack(rank.thread);
  }
  if (!main_is_told && !all_wait) {
    text += fmt::format("  main thread{}\n", phase_.empty() ? "" : ": " + phase_);
    add_stack(thread_);
  }
  for (const auto& [thread, name] : helping_threads()) {
    if (all_wait || phase_.empty()) break;
    text += fmt::format("  {}\n", name);
    add_stack(thread);
  }
  write_to_stderr(text);
}

void Watchdog::watch() {
  const double slice = std::min(1.0, timeout_ / 40);
  Pauses pauses;
  const double end = timeout_ + (cluster_.local_ranks() == 1 ? kToThrow : kToLeave);
  bool told = false;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::duration<double>(slice), [&] { return stop_; })) {
    Stall stall = longest();
    stall.seconds = std::min(stall.seconds, pauses.running(slice));
    if (stall.seconds < kTold * timeout_) {
      told = false;
    } else if (!told) {
      told = true;
      tell(stall);
    }
    if (stall.seconds < end) continue;
    write_to_stderr(fmt::format(
        "tessera: comm error: {} for {:.3g} s, and nothing can end it but the end of the process; "
        "if it is only slow, raise --timeout\n",
        stall.what, stall.seconds));
    _exit(kRankFailed);
  }
}

}  // namespace tessera::cli
