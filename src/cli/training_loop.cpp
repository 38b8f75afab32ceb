#include "cli/training_loop.h"

#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "cli/report.h"

namespace tessera::cli {

TrainingLoop::TrainingLoop(const Parts& parts, Forecast forecast, nlohmann::json startup,
                           double peak)
    : run_(parts.run),
      data_(parts.data),
      state_(parts.state),
      watch_(parts.watch),
      progress_(parts.progress),
      saver_(parts.saver),
      watchdog_(parts.watchdog),
      signals_(parts.signals),
      steps_(run_.job.config.integer("train.steps")),
      replicas_(parts.replicas),
      forecast_(std::move(forecast)),
      startup_(std::move(startup)),
      peak_(peak),
      saved_(state_.first_step),
      told_(run_.session->fallbacks()) {}

/// Runs a step. If float16 overflows, the error suggests a remedy.
void TrainingLoop::run_function() {
  Session& session = *run_.session;
  try {
    session.run("train");
    if (!session.skipped().empty() && run_.args.on_nonfinite == "stop" &&
        !state_.spikes.left_out(session))
      throw Error(ErrorKind::usage, session.skipped(), ErrorCode::not_finite);
  } catch (const PeerFailure&) {
    throw;
  } catch (const Error& e) {
    if (run_.job.config.text("train.dtype") != "float16" || e.code() != ErrorCode::not_finite)
      throw;
    throw Error(e.kind(), fmt::format("{}; float16 ends at 65504: {}", e.what(),
                                      !run_.trainer.minimized.loss_scale.empty()
                                          ? "train in bfloat16 or float32"
                                          : "scale the loss with train.loss_scale=auto, or train "
                                            "in bfloat16"));
  }
}

/// The reason why the last step updated nothing, or "". Collective.
std::string TrainingLoop::why_skipped(StepRecord& r) const {
  const Minimized& m = run_.trainer.minimized;
  if (!run_.session->skipped().empty())
    return state_.spikes.last().empty() ? run_.session->skipped() : state_.spikes.last();
  if (m.loss_scale.empty()) return "";
  r.loss_scale = run_.session->fetch_scalar(m.loss_scale.name());
  if (std::isfinite(r.grad_norm)) return "";
  return fmt::format("a gradient is not finite in {}; the loss is scaled by {} from now on",
                     run_.job.config.text("train.dtype"), r.loss_scale);
}

/// Counts a step whose update was left out; throws if there were too many in a row.
void TrainingLoop::count_skip(StepRecord& r) {
  constexpr int64_t kMostInARow = 20;
  const std::string why = why_skipped(r);
  if (why.empty()) {
    skipped_in_a_row_ = 0;
    return;
  }
  ++state_.skipped;
  progress_.note(fmt::format("step {} is skipped ({} so far): {}", r.step, state_.skipped, why));
  TESSERA_REQUIRE(
      ++skipped_in_a_row_ < kMostInARow,
      "{} steps in a row were left out, the last one at step {}: {}; lower train.lr, or go back "
      "to an earlier checkpoint",
      kMostInARow, r.step, why);
}

/// Runs and times one step. Returns its record without eta_s.
StepRecord TrainingLoop::step(int64_t step) {
  Session& session = *run_.session;
  const double begin = host_seconds();
  watchdog_.note_step(step + 1);
  session.set_step(step);
  {
    const Watchdog::Phase phase(watchdog_, fmt::format("reading the data of step {}", step + 1));
    data_.batcher->feed(session, step + state_.spikes.data_shift());
  }
  const double reading = seconds_since(begin);
  state_.spikes.feed_limits(session);
  const double rate = learning_rate(run_.job, step);
  feed_scalar(session, run_.trainer.lr, rate);
  in_step(step + 1, [&] { run_function(); });
  StepRecord r{.step = step + 1, .steps = steps_, .lr = rate, .data_ms = reading * 1e3};
  r.loss = session.fetch_scalar(run_.trainer.model.loss.name());
  r.grad_norm = session.fetch_scalar(run_.trainer.minimized.gradient_norm.name());
  for (const Metric& m : run_.trainer.minimized.metrics)
    r.metrics.emplace_back(m.name, session.fetch_scalar(m.value.name()));
  state_.spikes.note(r, progress_);
  count_skip(r);
  const double seconds = seconds_since(begin);
  const CompiledProgram program = session.program();
  r.ms = seconds * 1e3;
  r.tokens_per_s =
      static_cast<double>(run_.job.config.integer("train.batch") * tokens_of_example(run_.job)) /
      seconds;
  r.flops_per_s = static_cast<double>(program.flops("train")) * run_.cluster.size() / seconds;
  r.peak_share = peak_ > 0 ? r.flops_per_s / peak_ : 0;
  r.planned_ms = 1e3 * forecast_.seconds();
  r.memory = program.persistent_bytes() + program.transient_bytes();
  r.skipped = state_.skipped;
  return r;
}

void TrainingLoop::raise_peak(StepRecord& r) {
  const double raised = raised_peak(r, peak_);
  if (raised <= peak_) return;
  const bool matters = raised > 1.05 * peak_;
  if (!told_peak_ && matters)
    progress_.note(fmt::format(
        "step {} reached {}, more than the {} that matmuls reached before the first step: from "
        "now on the peak is what the fastest step reached",
        r.step, with_unit(raised, "FLOP/s"), with_unit(peak_, "FLOP/s")));
  told_peak_ = told_peak_ || matters;
  peak_ = raised;
}

/// Shares after a step what every rank needs of the others; sets the slowest rank in the record.
TrainingLoop::News TrainingLoop::share_news(StepRecord& r) {
  const double seconds = r.ms * 1e-3;
  std::vector<double> mine;
  for (const double waited : run_.session->waited()) {
    mine.push_back(signals_.seen());
    mine.push_back(saver_.has_news() ? 1 : 0);
    mine.push_back(seconds - waited);
  }
  const std::vector<double> all = in_step(r.step, [&] { return run_.cluster.gather(mine); });
  std::vector<double> own;
  News news;
  for (size_t i = 0; i < all.size(); i += 3) {
    news.signal = std::max(news.signal, static_cast<int>(all[i]));
    news.about_saves |= all[i + 1] != 0;
    own.push_back(all[i + 2]);
  }
  const std::string line = stragglers_.after_step(r.step, own, run_.hosts);
  r.slowest_rank = stragglers_.slowest();
  r.slowest_ms = 1e3 * stragglers_.slowest_seconds();
  r.median_ms = 1e3 * stragglers_.median_seconds();
  if (!line.empty()) {
    progress_.note(line);
    progress_.record({{"step", r.step}, {"slow_rank", stragglers_.slow()}, {"why", line}});
  }
  if (const std::string off = forecast_.after_step(r.step, seconds, *run_.session, line);
      !off.empty())
    progress_.note(off);
  return news;
}

void TrainingLoop::evaluate(int64_t step, nlohmann::json& report) {
  if (!data_.evaluator->has_data()) return;
  const Evaluation e = data_.evaluator->run(*run_.session);
  progress_.evaluation(step, e.loss, e.accuracy, e.metrics);
  report["eval_loss"] = json_number(e.loss);
  if (e.accuracy >= 0) report["eval_accuracy"] = e.accuracy;
  for (const auto& [name, value] : e.metrics) report["eval_" + name] = json_number(value);
  if (state_.best.take(step, e.loss)) saver_.save_best(step);
  report["best_step"] = state_.best.step;
  report["best_loss"] = json_number(state_.best.loss);
}

/// Whether train.patience ends the job before step `step`; says so.
bool TrainingLoop::ends_early(int64_t step) const {
  const Config& c = run_.job.config;
  const int64_t patience = c.integer("train.patience");
  if (!state_.best.ends_before(step, c.integer("train.eval_every"), patience)) return false;
  progress_.note(fmt::format(
      "stopped early after step {}: {} evaluations since step {} had no lower loss than "
      "its {:.4f}",
      step, patience, state_.best.step, state_.best.loss));
  progress_.record({{"step", step}, {"stopped_early", true}});
  return true;
}

/// Called after the first step: reports the time of each startup phase.
void TrainingLoop::report_start(double first_step) {
  startup_["first_step_s"] = first_step;
  double total = 0;
  for (const auto& phase : startup_) total += phase.get<double>();
  progress_.inform(fmt::format(
      "first step after {:.2f} s: ranks {:.2f}, compile {:.2f}, load {:.2f}, matmul peak {:.2f}, "
      "step {:.2f}",
      total, startup_["ranks_s"].get<double>(), startup_["compile_s"].get<double>(),
      startup_["load_s"].get<double>(), startup_["peak_s"].get<double>(), first_step));
  progress_.record({{"startup", startup_}});
}

/// Saves and stops after a signal.
int TrainingLoop::save_and_stop(int64_t step, int signal) {
  saver_.start(step);
  if (saver_.end(step) == 0)
    progress_.note(fmt::format(
        "{}: {}; exit code {} asks for a restart", signal_name(signal),
        saver_.is_on() ? fmt::format("saved at step {}", step)
                       : fmt::format("stopped at step {}, nothing saved (no --checkpoint)", step),
        kRequeue));
  return kRequeue;
}

/// A device tells some fallbacks only after it has tried: captures, in the second step. Bounds of
/// rows are raised in any step.
void TrainingLoop::note_fallbacks() {
  for (const std::string& line : run_.session->fallbacks()) {
    if (std::find(told_.begin(), told_.end(), line) != told_.end()) continue;
    told_.push_back(line);
    progress_.note("note    " + line);
  }
}

std::optional<int> TrainingLoop::after_step(StepRecord& r, const News& news,
                                            nlohmann::json& report) {
  Session& session = *run_.session;
  const int64_t save_every = run_.args.save_every,
                every = run_.job.config.integer("train.eval_every");
  watch_.after_step(session, run_.trainer.graph, r.step, progress_);
  report.update({{"step", r.step},
                 {"loss", json_number(r.loss)},
                 {"grad_norm", json_number(r.grad_norm)},
                 {"ms", mean_ms_},
                 {"skipped", state_.skipped}});
  for (const auto& [name, value] : r.metrics) report[name] = json_number(value);
  const bool last = r.step == steps_;
  const bool saves =
      saver_.is_on() && (last || news.signal != 0 || (save_every > 0 && r.step % save_every == 0));
  in_step(r.step, [&] { replicas_.after_step(session, r.step, r.ms * 1e-3); });
  if (news.signal != 0 && !last) return save_and_stop(r.step, news.signal);
  // Before a save, so that its checkpoint knows the best evaluation.
  if (last || (every > 0 && r.step % every == 0)) evaluate(r.step, report);
  if (saves) {
    saver_.start(r.step);
    saved_ = r.step;
  } else if (news.about_saves) {
    saver_.tend(r.step);
  }
  if (data_.samples && (last || r.step % run_.args.sample_every == 0))
    in_step(r.step, [&] { progress_.samples(r.step, data_.samples->write(session)); });
  return {};
}

int TrainingLoop::run(nlohmann::json& report) {
  report["step"] = state_.first_step;
  for (int64_t next = state_.first_step; next < steps_;) {
    if (ends_early(next)) {
      if (saved_ < next) saver_.start(next);
      return saver_.end(next);
    }
    const bool is_first = next == state_.first_step;
    StepRecord r = step(next);
    raise_peak(r);
    mean_ms_ = is_first ? r.ms : 0.9 * mean_ms_ + 0.1 * r.ms;
    r.eta_s = mean_ms_ * 1e-3 * static_cast<double>(steps_ - r.step);
    const News news = share_news(r);
    progress_.step(r);
    summary_.add(r);
    note_fallbacks();
    if (is_first) report_start(r.ms * 1e-3);
    next = r.step;
    if (state_.spikes.wants_rollback())
      next = in_step(r.step, [&] {
        return state_.spikes.roll_back(r.step, run_.args, *run_.session, saver_, progress_);
      });
    if (next < r.step) continue;
    if (const std::optional<int> code = after_step(r, news, report)) return *code;
  }
  return saver_.end(steps_);
}

std::string TrainingLoop::summary(int code) const {
  // Of a failed save an error has said so.
  return summary_.text(state_.best, {saver_.has_failed() ? std::string() : run_.args.checkpoint,
                                     run_.args.files.log, code == 0 ? next_command(run_) : ""});
}

}  // namespace tessera::cli
