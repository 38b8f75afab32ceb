// Resuming. A checkpoint identifies its job: configuration, a fingerprint of the data, and the
// numerics key, which tells whether bit-equal results can be expected.
#include <charconv>

#include "base/fail.h"
#include "base/printable.h"
#include "cli/training.h"
#include "tessera/build_info.h"

namespace tessera::cli {

namespace {

constexpr const char* kAllow = "--allow-changes";

/// Keys that may change between runs: they do not change results, or only the number of steps.
bool is_free(const std::string& key) {
  static const char* const free[] = {"train.steps",        "train.threads",
                                     "train.eval_every",   "train.patience",
                                     "train.recompute",    "train.reshard_after_forward",
                                     "train.microbatches", "train.pipeline_schedule",
                                     "train.overlap",      "model.loss_blocks",
                                     "data.path"};
  return key.starts_with("layout.") ||
         std::find(std::begin(free), std::end(free), key) != std::end(free);
}

/// Keys that users tune during training: a change is reported but not refused.
bool is_tuned(const std::string& key) {
  static const char* const tuned[] = {
      "train.lr",    "train.schedule", "train.warmup",       "train.start", "train.flat",
      "train.floor", "train.cooldown", "train.weight_decay", "train.clip",  "train.on_spike"};
  return std::find(std::begin(tuned), std::end(tuned), key) != std::end(tuned);
}

std::string stored(const Checkpoint& checkpoint, const char* key) {
  const auto it = checkpoint.metadata.find(key);
  return it == checkpoint.metadata.end() ? "" : it->second;
}

/// A number of steps in the metadata; 0 where there is none.
int64_t stored_steps(const Checkpoint& checkpoint, const char* key) {
  const std::string text = stored(checkpoint, key);
  int64_t steps = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), steps);
  if (!text.empty() && (error != std::errc() || *end != 0 || steps < 0))
    fail(ErrorKind::io, "[checkpoint] '{}': its metadata '{}' is '{}', not a number of steps",
         checkpoint.path, key, text);
  return steps;
}

/// Throws a usage error if the checkpoint belongs to another job; adds changes of tuned keys to
/// `notes`.
void compare_jobs(Training& t, const Checkpoint& checkpoint, std::vector<std::string>& notes) {
  std::string different;
  auto differs = [&](const std::string& what, const std::string& was, const std::string& is) {
    different +=
        fmt::format("{}{} was '{}' and is '{}'", different.empty() ? "" : ", ", what, was, is);
  };
  if (const std::optional<Config> then = stored_config(t.job, checkpoint)) {
    for (const ConfigKey& key : then->keys()) {
      const std::string now = t.job.config.text(key.name);
      if (same_value(key.value, now) || is_free(key.name)) continue;
      if (is_tuned(key.name)) {
        notes.push_back(fmt::format("{} was {} and is {} from here on", key.name, key.value, now));
      } else {
        differs(key.name, key.value, now);
      }
    }
  }
  const std::string data = stored(checkpoint, "data_fingerprint"), &now = t.data_fingerprint;
  if (!data.empty() && data != now) differs("the data", data, now);
  if (different.empty()) return;
  TESSERA_REQUIRE(
      t.args.allow_changes,
      "'{}' was saved by another job: {}; continue with what it had, choose another --checkpoint "
      "directory, or add {}",
      checkpoint.path, different, kAllow);
  notes.push_back("warning: continuing with changes: " + different);
}

}  // namespace

bool same_value(const std::string& a, const std::string& b) {
  if (a == b) return true;
  char *end_a = nullptr, *end_b = nullptr;
  const double x = std::strtod(a.c_str(), &end_a), y = std::strtod(b.c_str(), &end_b);
  return !a.empty() && !b.empty() && *end_a == 0 && *end_b == 0 && x == y;
}

void require_stored_model(const Job& job, const Checkpoint& checkpoint,
                          const std::set<std::string>& free) {
  const std::optional<Config> then = stored_config(job, checkpoint);
  if (!then) return;
  std::string different;
  for (const ConfigKey& key : then->keys()) {
    const std::string& now = job.config.text(key.name);
    if (!key.name.starts_with("model.") || free.contains(key.name) || same_value(key.value, now))
      continue;
    different += fmt::format("{}{} was '{}' and is '{}'", different.empty() ? "" : ", ", key.name,
                             key.value, now);
  }
  TESSERA_REQUIRE(
      different.empty(),
      "'{}' was saved by another model: {}; open the model with what the checkpoint had",
      checkpoint.path, different);
}

std::string numerics_key(Training& t) {
  const BuildInfo info = build_info();
  return fmt::format("program {:016x}, {} ranks, {}, {}, {}, version {}",
                     t.session->program().hash(), t.cluster.size(), t.job.device, info.isa,
                     info.blas, info.version);
}

std::optional<Checkpoint> open_checkpoints(Training& t) {
  if (t.args.checkpoint.empty()) return {};
  t.checkpoints = std::make_unique<Checkpoints>(
      t.cluster, t.args.checkpoint, static_cast<int>(t.args.keep), t.args.most_staging());
  std::optional<Checkpoint> latest = t.checkpoints->latest();
  if (!t.args.resume) {
    TESSERA_REQUIRE(
        !latest,
        "'{}' holds checkpoints of an earlier run (the last at step {}); add --resume to continue "
        "from it, or choose another --checkpoint directory",
        t.args.checkpoint, latest ? latest->step : 0);
  }
  if (t.args.keep_best)
    t.best_checkpoints = std::make_unique<Checkpoints>(t.cluster, t.args.checkpoint + "/best", 1);
  return latest;
}

void resume(Training& t, const std::optional<Checkpoint>& latest) {
  if (!latest) {
    t.progress->inform("no checkpoint yet: starting from step 0");
    return;
  }
  std::vector<std::string> notes;
  compare_jobs(t, *latest, notes);
  const std::optional<Checkpoint> loaded =
      t.checkpoints->load_latest(*t.session, t.args.allow_changes);
  if (!loaded->warning.empty()) t.progress->note("warning: " + loaded->warning);
  for (const std::string& note : notes) t.progress->note(note);
  t.first_step = loaded->step;
  t.skipped = stored_steps(*loaded, "skipped");
  t.spikes.data_shift = stored_steps(*loaded, "data_shift");
  t.best = BestEvaluation::parse(stored(*loaded, "best"), loaded->path);
  t.spikes.history = SpikeHistory::parse(stored(*loaded, "spikes"), loaded->path);
  t.progress->inform(fmt::format("resumed from {} at step {}", loaded->path, t.first_step));
  if (const int64_t steps = t.job.config.integer("train.steps"); t.first_step >= steps)
    t.progress->note(fmt::format(
        "nothing to do: train.steps is {}; to continue, give the number of steps in all (--steps)",
        steps));
  const std::string then = stored(*loaded, "numerics"), now = numerics_key(t);
  if (!then.empty() && then != now)
    t.progress->note(fmt::format(
        "numerics differ, so results agree to rounding and not to the bit: saved with {}; now {}",
        then, now));
}

std::vector<Checkpoint> checkpoints_of(const std::string& directory) {
  std::vector<Checkpoint> all = find_checkpoints(directory);
  TESSERA_REQUIRE(!all.empty(), "'{}' holds no checkpoint", directory);
  return all;
}

Checkpoint load_first(Session& session, const std::vector<Checkpoint>& all) {
  return load_first(session, all, session.program().stored_names());
}

Checkpoint load_first(Session& session, const std::vector<Checkpoint>& all,
                      const std::vector<std::string>& names, bool average) {
  const bool is_root = session.cluster().is_root();
  const auto warn = [&](const std::string& text) {
    if (is_root) std::fprintf(stderr, "tessera: warning: %s\n", printable(text).c_str());
  };
  if (!all[0].warning.empty()) warn(all[0].warning);
  for (size_t i = 0;; ++i) {
    try {
      return average ? load_averages(session, all[i].path, names)
                     : load_tensors(session, all[i].path, names);
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::io || i + 1 == all.size()) throw;
      warn(fmt::format("'{}' is loaded instead of one that cannot be read: {}", all[i + 1].path,
                       e.what()));
    }
  }
}

}  // namespace tessera::cli
