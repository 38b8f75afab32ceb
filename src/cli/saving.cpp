// Saving while training. A save works in the background; what goes wrong there is noticed after one
// of the next steps, and the state that there is then is saved instead: it is newer than the copy
// that was not written.
#include <cmath>
#include <thread>

#include "base/fail.h"
#include "cli/training.h"

namespace tessera::cli {

namespace {

/// Seconds to wait before the next attempt: none after the first failure, then 0.1 s, doubled up to
/// 10 s.
double pause_before_retry(int64_t tries) {
  return tries <= 1 ? 0 : std::min(10.0, 0.1 * std::exp2(static_cast<double>(tries - 2)));
}

/// Runs `work`, which is collective. False if storage failed, which every process learns.
template <class Work>
bool storage_works(Training& t, Work work) {
  try {
    work();
    return true;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::io) throw;
    FailedSave& f = t.failed_save;
    if (++f.tries == 1)
      t.progress->note(fmt::format(
          "warning: a save failed: {}; training goes on, and saving is tried again", e.what()));
    f.trying = false;
    f.next = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                std::chrono::duration<double>(pause_before_retry(f.tries)));
    return false;
  }
}

}  // namespace

bool finish_save(Training& t) {
  return storage_works(t, [&] {
    const std::optional<Checkpoint> saved = t.checkpoints->finish();
    if (!saved) return;
    if (!saved->warning.empty()) t.progress->note("warning: " + saved->warning);
    if (t.failed_save.tries > 0)
      t.progress->note(fmt::format("storage works again: saved at step {}", saved->step));
    t.failed_save = {};
  });
}

int64_t staging_bytes(Training& t) {
  if (!t.checkpoints) return 0;
  return std::min(t.args.most_staging(), Checkpoints::owned_bytes(*t.session));
}

namespace {
std::map<std::string, std::string> metadata_of(Training& t) {
  nlohmann::json parameters = nlohmann::json::array();
  for (const Tensor& p : t.trainer.graph.parameters()) parameters.push_back(p.name());
  return {{"config", t.job.config.to_toml()},
          {"seed", t.job.config.text("train.seed")},
          {"data_fingerprint", t.data_fingerprint},
          {"numerics", numerics_key(t)},
          {"parameters", parameters.dump()},
          {"skipped", fmt::format("{}", t.skipped)},
          {"data_shift", fmt::format("{}", t.spikes.data_shift)},
          {"spikes", t.spikes.history.to_string()},
          {"best", t.best.to_string()}};
}
}  // namespace

void save_best(Training& t, int64_t step) {
  if (!t.best_checkpoints) return;
  try {
    t.best_checkpoints->save(*t.session, step, metadata_of(t));
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::io) throw;
    t.progress->note(fmt::format("warning: the best checkpoint could not be saved: {}", e.what()));
  }
}

void start_save(Training& t, int64_t step) {
  const Clock::time_point begin = Clock::now();
  finish_save(t);
  const double waited = seconds_since(begin);
  const bool started =
      storage_works(t, [&] { t.checkpoints->start(*t.session, step, metadata_of(t)); });
  if (!started) return;
  t.failed_save.trying = t.failed_save.tries > 0;
  t.progress->record(nlohmann::json{
      {"step", step},
      {"save_ms", 1e3 * (seconds_since(begin) - waited)},
      {"save_wait_ms",
       1e3 * waited}}.dump());
}

bool has_save_news(const Training& t) {
  if (!t.checkpoints) return false;
  const FailedSave& f = t.failed_save;
  if (f.trying) return !t.checkpoints->is_saving();
  return t.checkpoints->has_failed() || (f.tries > 0 && Clock::now() >= f.next);
}

void tend_saves(Training& t, int64_t step) {
  const bool due = t.failed_save.tries > 0 && !t.failed_save.trying;
  if (due) {
    start_save(t, step);
  } else {
    finish_save(t);
  }
}

bool end_saves(Training& t, int64_t step) {
  double waited = 0;  // by all processes alike
  bool done = finish_save(t) && t.failed_save.tries == 0;
  while (!done && waited <= t.args.save_retry) {
    const double pause = std::max(0.1, pause_before_retry(t.failed_save.tries));
    std::this_thread::sleep_for(std::chrono::duration<double>(pause));
    waited += pause;
    start_save(t, step);
    done = finish_save(t) && t.failed_save.tries == 0;
  }
  return done;
}

void settle_save(Training& t) {
  constexpr double kSeconds = 5;
  if (t.checkpoints) t.checkpoints->settle(kSeconds);
}

}  // namespace tessera::cli
