// Spikes: a step whose loss or gradient norm is far above those before is told, left out, or undone
// with all batches since the last checkpoint (Chowdhery et al. 2022, section 5.1).
#include <cmath>
#include <limits>

#include "base/fail.h"
#include "cli/spikes.h"

namespace tessera::cli {

namespace {

constexpr const char *kLossLimit = "spike.loss_limit", *kNormLimit = "spike.grad_norm_limit",
                     *kGate = "spike.gate";

/// The newest checkpoint that --save-every made; "" if there is none. Collective.
std::string regular_checkpoint(const SavingFlags& flags, Cluster& cluster) {
  std::string found;
  if (cluster.is_root()) {
    for (const Checkpoint& c : find_checkpoints(flags.checkpoint)) {
      if (c.step % flags.save_every != 0) continue;
      found = c.path;
      break;
    }
  }
  return cluster.first_text(found);
}

}  // namespace

void SpikeGuard::add_limits(Trainer& trainer, CompileOptions& compile) const {
  if (!leaves_out()) return;
  Graph& g = trainer.graph;
  const auto is_above = [&](Tensor value, const char* limit) {
    return cast(value, DType::float32) > g.input(limit, {}, DType::float32);
  };
  Tensor gate = where(logical_or(is_above(trainer.model.loss, kLossLimit),
                                 is_above(trainer.minimized.gradient_norm, kNormLimit)),
                      constant(g, std::numeric_limits<double>::infinity()), 0.0)
                    .named(kGate);
  trainer.functions[0].outputs.push_back(gate);
  compile.functions = trainer.functions;
  compile.guards.push_back(gate.name());
}

void SpikeGuard::feed_limits(Session& session) const {
  if (!leaves_out()) return;
  const SpikeHistory::Limits limits = history_.limits();
  for (const auto& [name, limit] :
       {std::pair(kLossLimit, limits.loss), std::pair(kNormLimit, limits.grad_norm)}) {
    Array value(DType::float32, {}, {});
    value.data<float>()[0] = limit;
    session.feed(name, value);
  }
}

bool SpikeGuard::left_out(Session& session) const {
  return leaves_out() && std::isinf(session.fetch_scalar(kGate));
}

void SpikeGuard::note(const StepRecord& r, Progress& progress) {
  const std::string why = history_.spike(r.loss, r.grad_norm);
  history_.add(r.loss, r.grad_norm);
  const bool is_first = last_.empty();
  last_ = why;
  if (why.empty()) return;
  progress.record({{"step", r.step}, {"spike", why}, {"on_spike", on_spike_}});
  if (is_first && on_spike_ == "warn")
    progress.note(
        fmt::format("warning: step {} is a spike: {}; train.on_spike = skip or rollback "
                    "does something about it",
                    r.step, why));
}

int64_t SpikeGuard::roll_back(int64_t step, const SavingFlags& flags, Session& session,
                              Saver& saver, Progress& progress) {
  constexpr int kMostToOneStep = 3;
  saver.finish();
  const std::string path = regular_checkpoint(flags, session.cluster());
  if (path.empty()) {
    progress.note(fmt::format(
        "warning: step {} is a spike: {}; there is no checkpoint to go back to yet", step, last_));
    return step;
  }
  const int64_t to = read_checkpoint(path).step;
  rollbacks_ = to == rolled_back_to_ ? rollbacks_ + 1 : 1;
  rolled_back_to_ = to;
  TESSERA_REQUIRE(
      rollbacks_ <= kMostToOneStep,
      "the loss or gradient spikes again after {} rollbacks to step {}, each with other batches: "
      "{} (step {}); lower train.lr or train.clip, or set train.on_spike=warn",
      kMostToOneStep, to, last_, step);
  load_checkpoint(session, path);
  const int64_t first = to + data_shift_, last = step - 1 + data_shift_;
  data_shift_ += step - to;
  progress.note(fmt::format(
      "step {} is a spike: {}; back to step {}, and its batches {} to {} are not seen again", step,
      last_, to, first, last));
  last_.clear();
  progress.record({{"step", step}, {"rolled_back_to", to}, {"left_out_batches", {first, last}}});
  return to;
}

void SpikeGuard::restore(int64_t data_shift, SpikeHistory history) {
  data_shift_ = data_shift;
  history_ = std::move(history);
}

}  // namespace tessera::cli
