// Resuming. A checkpoint identifies its job: configuration, a fingerprint of the data, and the
// numerics key, which tells whether bit-equal results can be expected.
#include <charconv>

#include "base/fail.h"
#include "base/printable.h"
#include "cli/training.h"
#include "tessera/build_info.h"

namespace tessera::cli {

namespace {

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
  static const char* const tuned[] = {"train.lr",       "train.schedule", "train.warmup",
                                      "train.start",    "train.flat",     "train.floor",
                                      "train.numerics", "train.cooldown", "train.weight_decay",
                                      "train.clip",     "train.on_spike"};
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

/// Warns where steps to come have another learning rate than the checkpoint's job gives them: also
/// more steps make another curve.
void compare_rates(const Run& run, const Config& stored, int64_t first,
                   std::vector<std::string>& notes) {
  Job then = run.job;
  then.config = stored;
  const int64_t steps = run.job.config.integer("train.steps"), was = stored.integer("train.steps");
  for (int64_t step = first; step < steps; step += std::max<int64_t>(1, (steps - first) / 1000)) {
    const double before = learning_rate(then, step), now = learning_rate(run.job, step);
    if (before == now) continue;
    return notes.push_back(fmt::format(
        "warning: the curve of learning rates changes{}: step {} had {:.4g} and has {:.4g}",
        steps == was ? "" : fmt::format(", as train.steps was {} and is {}", was, steps), step + 1,
        before, now));
  }
}

/// Throws a usage error if the checkpoint belongs to another job; adds changes of tuned keys and of
/// learning rates to `notes`.
void compare_jobs(const Run& run, const std::string& data_now, const Checkpoint& checkpoint,
                  std::vector<std::string>& notes) {
  std::string different;
  auto differs = [&](const std::string& what, const std::string& was, const std::string& is) {
    different +=
        fmt::format("{}{} was '{}' and is '{}'", different.empty() ? "" : ", ", what, was, is);
  };
  if (const std::optional<Config> then = stored_config(run.job, checkpoint)) {
    for (const ConfigKey& key : then->keys()) {
      const std::string now = run.job.config.text(key.name);
      if (same_value(key.value, now) || is_free(key.name)) continue;
      if (is_tuned(key.name)) {
        notes.push_back(fmt::format("{} was {} and is {} from here on", key.name, key.value, now));
      } else {
        differs(key.name, key.value, now);
      }
    }
    compare_rates(run, *then, checkpoint.step, notes);
  }
  const std::string data = stored(checkpoint, "data_fingerprint");
  if (!data.empty() && data != data_now) differs("the data", data, data_now);
  if (different.empty()) return;
  TESSERA_REQUIRE(
      run.args.allow_changes,
      "'{}' was saved by another job: {}; continue with what it had, choose another --checkpoint "
      "directory, or add --allow-changes",
      checkpoint.path, different);
  notes.push_back("warning: continuing with changes: " + different);
}

/// What bit-equal results depend on, besides model, data and seed.
std::string numerics_key(const Run& run) {
  const BuildInfo info = build_info();
  if (const int64_t chunks = strict_chunks_of(run.job.config); chunks > 0)  // all the rest is free
    return fmt::format("strict:{}{}, version {}", chunks,
                       run.session->program().depends_on_microbatches("train")
                           ? fmt::format(", {} microbatches", microbatches_of(run.job.config))
                           : "",
                       info.version);
  return fmt::format("program {:016x}, {} ranks, {}, {}, {}, version {}",
                     run.session->program().hash(), run.cluster.size(), run.job.device, info.isa,
                     info.blas, info.version);
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

Saver::Metadata RunState::metadata(Run& run, const RunData& data) const {
  nlohmann::json names = nlohmann::json::array();
  for (const Tensor& p : run.trainer.graph.parameters()) names.push_back(p.name());
  return {{"config", run.job.config.to_toml()},
          {"seed", run.job.config.text("train.seed")},
          {"data_fingerprint", data.fingerprint},
          {"numerics", numerics_key(run)},
          {"parameters", names.dump()},
          {"skipped", fmt::format("{}", skipped)},
          {"data_shift", fmt::format("{}", spikes.data_shift())},
          {"spikes", spikes.history().to_string()},
          {"best", best.to_string()}};
}

void RunState::resume(Run& run, const RunData& data, const std::optional<Checkpoint>& latest,
                      Saver& saver, Progress& progress) {
  if (!latest) return progress.inform("no checkpoint yet: starting from step 0");
  std::vector<std::string> notes;
  compare_jobs(run, data.fingerprint, *latest, notes);
  const Checkpoint loaded = saver.load_latest();
  if (!loaded.warning.empty()) progress.note("warning: " + loaded.warning);
  first_step = loaded.step;
  skipped = stored_steps(loaded, "skipped");
  const int64_t shift = stored_steps(loaded, "data_shift");
  best = BestEvaluation::parse(stored(loaded, "best"), loaded.path);
  spikes.restore(shift, SpikeHistory::parse(stored(loaded, "spikes"), loaded.path));
  progress.inform(fmt::format("resumed from {} at step {}", loaded.path, first_step));
  for (const std::string& note : notes) progress.note(note);
  if (const int64_t steps = run.job.config.integer("train.steps"); first_step >= steps)
    progress.note(fmt::format(
        "nothing to do: train.steps is {}; to continue, give the number of steps in all (--steps)",
        steps));
  const std::string then = stored(loaded, "numerics"), now = numerics_key(run);
  if (!then.empty() && then != now)
    progress.note(fmt::format(
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
