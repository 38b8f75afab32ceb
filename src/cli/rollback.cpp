// Spikes: a step whose loss or gradient norm is far above those before is told, left out, or undone
// with all batches since the last checkpoint (Chowdhery et al. 2022, section 5.1).
#include <cmath>
#include <limits>

#include "base/fail.h"
#include "cli/training.h"
#include "tessera/checkpoint.h"

namespace tessera::cli {

namespace {

constexpr const char *kLossLimit = "spike.loss_limit", *kNormLimit = "spike.grad_norm_limit",
                     *kGate = "spike.gate";

bool leaves_out(const Training& t) { return t.job.config.text("train.on_spike") == "skip"; }

/// The newest checkpoint that --save-every made; "" if there is none. Collective.
std::string regular_checkpoint(Training& t) {
  std::string found;
  if (t.cluster.is_root()) {
    for (const Checkpoint& c : find_checkpoints(t.args.checkpoint)) {
      if (c.step % t.args.save_every != 0) continue;
      found = c.path;
      break;
    }
  }
  return t.cluster.first_text(found);
}

}  // namespace

void add_spike_limits(Training& t) {
  if (!leaves_out(t)) return;
  Graph& g = t.trainer.graph;
  const auto is_above = [&](Tensor value, const char* limit) {
    return cast(value, DType::float32) > g.input(limit, {}, DType::float32);
  };
  Tensor gate = where(logical_or(is_above(t.trainer.model.loss, kLossLimit),
                                 is_above(t.trainer.minimized.gradient_norm, kNormLimit)),
                      constant(g, std::numeric_limits<double>::infinity()), 0.0)
                    .named(kGate);
  t.trainer.functions[0].outputs.push_back(gate);
  t.compile.functions = t.trainer.functions;
  t.compile.guards.push_back(gate.name());
}

void feed_spike_limits(Training& t) {
  if (!leaves_out(t)) return;
  const SpikeHistory::Limits limits = t.spikes.history.limits();
  for (const auto& [name, limit] :
       {std::pair(kLossLimit, limits.loss), std::pair(kNormLimit, limits.grad_norm)}) {
    Array value(DType::float32, {}, {});
    value.data<float>()[0] = limit;
    t.session->feed(name, value);
  }
}

bool left_out_spike(Training& t) {
  return leaves_out(t) && std::isinf(t.session->fetch_scalar(kGate));
}

void note_spike(Training& t, const StepRecord& r) {
  Spikes& s = t.spikes;
  const std::string why = s.history.spike(r.loss, r.grad_norm);
  s.history.add(r.loss, r.grad_norm);
  const bool is_first = s.last.empty();
  s.last = why;
  if (why.empty()) return;
  t.progress->record(nlohmann::json{
      {"step", r.step}, {"spike", why}, {"on_spike", t.job.config.text("train.on_spike")}}
                         .dump());
  if (is_first && t.job.config.text("train.on_spike") == "warn")
    t.progress->note(
        fmt::format("warning: step {} is a spike: {}; train.on_spike = skip or rollback does "
                    "something about it",
                    r.step, why));
}

int64_t roll_back(Training& t, int64_t step) {
  constexpr int kMostToOneStep = 3;
  Spikes& s = t.spikes;
  const std::string why = s.last;
  finish_save(t);
  const std::string path = regular_checkpoint(t);
  if (path.empty()) {
    t.progress->note(fmt::format(
        "warning: step {} is a spike: {}; there is no checkpoint to go back to yet", step, why));
    return step;
  }
  const int64_t to = read_checkpoint(path).step;
  s.rollbacks = to == s.rolled_back_to ? s.rollbacks + 1 : 1;
  s.rolled_back_to = to;
  TESSERA_REQUIRE(
      s.rollbacks <= kMostToOneStep,
      "the loss or gradient spikes again after {} rollbacks to step {}, each with other batches: "
      "{} (step {}); lower train.lr or train.clip, or set train.on_spike=warn",
      kMostToOneStep, to, why, step);
  load_checkpoint(*t.session, path);
  const int64_t first = to + s.data_shift, last = step - 1 + s.data_shift;
  s.data_shift += step - to;
  s.last.clear();
  t.progress->note(fmt::format(
      "step {} is a spike: {}; back to step {}, and its batches {} to {} are not seen again", step,
      why, to, first, last));
  t.progress->record(
      nlohmann::json{{"step", step}, {"rolled_back_to", to}, {"left_out_batches", {first, last}}}
          .dump());
  return to;
}

}  // namespace tessera::cli
