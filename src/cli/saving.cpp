#include "cli/saving.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/fail.h"
#include "cli/commands.h"
#include "cli/signals.h"

namespace tessera::cli {

namespace {

/// Seconds to wait before the next attempt: none after the first failure, then 0.1 s, doubled up to
/// 10 s.
double pause_before_retry(int64_t tries) {
  return tries <= 1 ? 0 : std::min(10.0, 0.1 * std::exp2(static_cast<double>(tries - 2)));
}

}  // namespace

void SavingFlags::declare(FlagTable& table) {
  table.add(
      kCheckpointsHeading,
      {{"--checkpoint DIR", &checkpoint, kAgree, "Directory of checkpoints."},
       {"--save-every", &save_every, kAgree,
        "Number of steps between checkpoints. One is always written at the end."},
       {"--save-retry SECONDS", &save_retry, kAgree,
        "How long a job that ends tries a failed save again, in seconds (60). While it trains it "
        "always does."},
       {"--keep", &keep, kAgree, "Number of checkpoints to keep (3).", whole_number(1, kMostKept)},
       {"--keep-best", &keep_best, kAgree,
        "Also keeps the checkpoint with the lowest evaluation loss, in DIR/best."},
       {"--staging BYTES", &staging, kAgree,
        "Most memory that a process takes to save while it trains, such as 4GB (1 GiB)."},
       {"--resume", &resume, kAgree, "Continues from the last checkpoint."},
       {"--allow-changes", &allow_changes, kAgree,
        "With --resume: continues although model, optimizer, batch, seed or data have changed."}});
}

void SavingFlags::require() const {
  TESSERA_REQUIRE(!checkpoint.empty() || (!resume && save_every == 0),
                  "--resume and --save-every need --checkpoint DIR");
  TESSERA_REQUIRE(save_every >= 0, "--save-every {} is negative; 0 saves at the end only",
                  save_every);
  TESSERA_REQUIRE(save_retry >= 0 && save_retry <= 86400,
                  "--save-retry {} is not between 0 and 86400 seconds", save_retry);
  TESSERA_REQUIRE(!keep_best || !checkpoint.empty(), "--keep-best needs --checkpoint DIR");
}

int64_t SavingFlags::most_staging() const {
  if (checkpoint.empty()) return 0;
  return staging.empty() ? Checkpoints::kStaging : parse_bytes("--staging", staging);
}

OpenCheckpoints open_checkpoints(Cluster& cluster, const SavingFlags& flags) {
  if (flags.checkpoint.empty()) return {};
  OpenCheckpoints open{std::make_unique<Checkpoints>(
      cluster, flags.checkpoint, static_cast<int>(flags.keep), flags.most_staging())};
  open.latest = open.all->latest();
  TESSERA_REQUIRE(
      flags.resume || !open.latest,
      "'{}' holds checkpoints of an earlier run (the last at step {}); add --resume to continue "
      "from it, or choose another --checkpoint directory",
      flags.checkpoint, open.latest ? open.latest->step : 0);
  if (flags.keep_best)
    open.best = std::make_unique<Checkpoints>(cluster, flags.checkpoint + "/best", 1);
  return open;
}

Saver::Saver(const SavingFlags& flags, OpenCheckpoints checkpoints, Session& session,
             Progress& progress, std::function<Metadata(int64_t step)> metadata)
    : flags_(flags),
      checkpoints_(std::move(checkpoints.all)),
      best_(std::move(checkpoints.best)),
      session_(session),
      progress_(progress),
      metadata_(std::move(metadata)) {}

Checkpoint Saver::load_latest() {
  return *checkpoints_->load_latest(session_, flags_.allow_changes);
}

/// Runs `work`, which is collective. False if storage failed, which every process learns.
bool Saver::storage_works(const std::function<void()>& work) {
  try {
    work();
    return true;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::io) throw;
    if (++failed_.tries == 1)
      progress_.note(fmt::format(
          "warning: a save failed: {}; training goes on, and saving is tried again", e.what()));
    failed_.trying = false;
    failed_.next = host_seconds() + pause_before_retry(failed_.tries);
    return false;
  }
}

bool Saver::finish() {
  return storage_works([&] {
    const std::optional<Checkpoint> saved = checkpoints_->finish();
    if (!saved) return;
    if (!saved->warning.empty()) progress_.note("warning: " + saved->warning);
    if (failed_.tries > 0)
      progress_.note(fmt::format("storage works again: saved at step {}", saved->step));
    failed_ = {};
  });
}

int64_t Saver::staging_bytes() const {
  return is_on() ? std::min(flags_.most_staging(), Checkpoints::owned_bytes(session_)) : 0;
}

void Saver::save_best(int64_t step) {
  if (!best_) return;
  const Metadata metadata = metadata_(step);
  try {
    best_->save(session_, step, metadata);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::io) throw;
    progress_.note(fmt::format("warning: the best checkpoint could not be saved: {}", e.what()));
  }
}

void Saver::start(int64_t step) {
  if (!is_on()) return;
  const double begin = host_seconds();
  finish();
  const double waited = seconds_since(begin);
  const Metadata metadata = metadata_(step);
  if (!storage_works([&] { checkpoints_->start(session_, step, metadata); })) return;
  failed_.trying = failed_.tries > 0;
  progress_.record({{"step", step},
                    {"save_ms", 1e3 * (seconds_since(begin) - waited)},
                    {"save_wait_ms", 1e3 * waited}});
}

bool Saver::has_news() const {
  if (!is_on()) return false;
  if (failed_.trying) return !checkpoints_->is_saving();
  return checkpoints_->has_failed() || (failed_.tries > 0 && host_seconds() >= failed_.next);
}

void Saver::tend(int64_t step) {
  if (failed_.tries > 0 && !failed_.trying) {
    start(step);
  } else {
    finish();
  }
}

bool Saver::try_until_saved(int64_t step) {
  double waited = 0;  // by all processes alike
  bool done = finish() && failed_.tries == 0;
  while (!done && waited <= flags_.save_retry) {
    const double pause = std::max(0.1, pause_before_retry(failed_.tries));
    std::this_thread::sleep_for(std::chrono::duration<double>(pause));
    waited += pause;
    start(step);
    done = finish() && failed_.tries == 0;
  }
  return done;
}

int Saver::end(int64_t step) {
  if (!is_on() || try_until_saved(step)) return 0;
  progress_.note(fmt::format(
      "error: the state after step {} could not be saved in {} s; exit code {} asks for a restart, "
      "which goes on from the newest checkpoint in '{}': make room there first",
      step, flags_.save_retry, kRequeue, flags_.checkpoint));
  return kRequeue;
}

void Saver::settle() {
  constexpr double kSeconds = 5;
  if (is_on()) checkpoints_->settle(kSeconds);
}

}  // namespace tessera::cli
