// The search over pipelines. For each number of stages it tries layouts of a stage's devices and
// numbers of microbatches that fill the pipeline, best guess first. The lower bound is the time of
// a stage's matmuls; candidates whose bound is not below the best plan's time are dropped.
#include <algorithm>
#include <thread>

#include "base/fail.h"
#include "lower/layout/rule_layouts.h"
#include "plan/corrections.h"
#include "plan/plan_queue.h"
#include "plan/stage_pricer.h"
#include "plan/stopwatch.h"

namespace tessera {

namespace {

constexpr int64_t kMostChunks = 8;
constexpr size_t kAxes = 2;             ///< of a stage's mesh
constexpr size_t kThreads = 2;          ///< for pricing
constexpr double kSpare = 1.25;         ///< if the guess times this fits, no recompute is tried
constexpr double kTooMuch = 1.7;        ///< of the memory limit: larger guesses are dropped
constexpr double kSurelyTooMuch = 1.1;  ///< the same for corrected estimates
constexpr double kComputing = 1.1, kExposed = 0.1;  ///< as in the search without stages

class PipelineSearch {
 public:
  PipelineSearch(const PlanModel& flat, const Machine& machine, const PlanOptions& options,
                 int64_t devices)
      : candidates_(flat, machine, options),
        corrections_(candidates_),
        stage_pricer_(candidates_.pricer()),
        limit_(options.memory.value_or(machine.memory)),
        devices_(devices) {}

  PipelinePlans run() {
    push_stages();
    std::vector<QueueEntry> batch;
    while (take_next(batch)) price(batch);
    PipelinePlans result;
    result.space = static_cast<int64_t>(candidates_.size());
    result.priced = priced_;
    result.least_memory = least_memory_;
    std::stable_sort(found_.begin(), found_.end(), [](const auto& x, const auto& y) {
      return x.stage.seconds < y.stage.seconds;
    });
    if (!found_.empty()) result.bound = found_[0].stage.seconds;
    result.bound = queue_.least_bound(result.bound, [](const QueueEntry& e) { return e.bound; });
    const size_t shown = candidates_.options().runners_up + 1;
    if (found_.size() > shown) found_.resize(shown);
    result.plans = std::move(found_);
    result.search_seconds = clock_.seconds();
    return result;
  }

 private:
  int64_t layers() const { return candidates_.model().layers; }
  int64_t stages_of(const Candidate& c) const {
    return devices_ / candidates_.assignment(c).mesh.size();
  }
  int64_t microbatches_of(const Candidate& c) const {
    return candidates_.microbatches(c.microbatch_option);
  }
  bool fits(const PricedPlan& p) const { return limit_ == 0 || p.memory() <= limit_; }

  void push_stages() {
    bool any = false;
    for (int64_t stages = 2; stages <= std::min(layers(), devices_); ++stages) {
      if (layers() % stages != 0 || devices_ % stages != 0) continue;
      any = true;
      for (const Assignment& a : assignments_of_stage(devices_ / stages)) push_assignment(a);
    }
    require(any,
            "[plan] {} layers and {} devices have no common divisor but 1, so there are no equal "
            "stages; give --devices or layers otherwise",
            layers(), devices_);
    const PlanModel& model = candidates_.model();
    require(!queue_.empty(),
            "[plan] no pipeline can be filled: a stage for each of its microbatches at least, and "
            "'{}' is {}, to be cut by stages and data ranks; give a larger batch",
            model.microbatch_dim, model.microbatches.back());
  }

  std::vector<Assignment> assignments_of_stage(int64_t devices) const {
    if (devices == 1) return {{Mesh({{"data", 1}}), {0}}};
    return candidates_.space().assignments(devices, kAxes);
  }

  void push_assignment(const Assignment& a) {
    QueueEntry entry;
    entry.is_open = true;
    entry.candidate.assignment = candidates_.add(candidates_.space().with_fixed(a));
    const std::vector<size_t> options = microbatch_options(entry.candidate);
    if (options.empty()) return;
    entry.key = entry.bound = candidates_.estimates().least(candidates_.assignment(entry.candidate),
                                                            candidates_.microbatches(options[0])) /
                              static_cast<double>(stages_of(entry.candidate));
    queue_.push(std::move(entry));
  }

  /// The numbers of microbatches that fill the stages and leave each rank whole examples.
  std::vector<size_t> microbatch_options(const Candidate& c) const {
    const StepSummary& summary = candidates_.summary();
    const int dim = summary.find(candidates_.model().microbatch_dim);
    const int64_t stages = stages_of(c);
    int64_t ranks = 1;
    if (dim >= 0) ranks = candidates_.estimates().cuts(candidates_.assignment(c))[dim];
    std::vector<size_t> options;
    for (size_t i = 0; i < candidates_.microbatch_options(); ++i) {
      const int64_t m = candidates_.microbatches(i);
      const bool divides = dim < 0 || summary.sizes[dim] % (m * ranks) == 0;
      if (m >= stages && divides) options.push_back(i);
    }
    return options;
  }

  std::vector<int64_t> chunks_of(int64_t stages, int64_t microbatches) const {
    std::vector<int64_t> chunks = {1};
    for (int64_t v = 2; v <= kMostChunks && microbatches % stages == 0; ++v) {
      if (layers() % (stages * v) == 0) chunks.push_back(v);
    }
    return chunks;
  }

  bool take_next(std::vector<QueueEntry>& batch) {
    batch.clear();
    const double most = (found_.empty() ? 2 : 1) * candidates_.options().seconds;
    while (batch.size() < kThreads && !queue_.empty() && clock_.seconds() < most) {
      QueueEntry entry = queue_.pop();
      if (entry.bound >= best_seconds_) continue;
      if (corrections_.is_contradiction(entry.candidate)) continue;
      if (entry.is_open) {
        expand(entry);
        continue;
      }
      if (is_too_large(entry)) continue;
      if (queue_.push_back(entry, entry.guess * corrections_.time(entry.candidate))) continue;
      batch.push_back(std::move(entry));
    }
    return !batch.empty();
  }

  void expand(const QueueEntry& open) {
    const size_t assignment = open.candidate.assignment;
    if (candidates_.assignment(assignment).mesh.size() > 1) candidates_.order_axes(assignment);
    const std::vector<size_t> options = microbatch_options(open.candidate);
    for (const Storage& storage : candidates_.storages(assignment)) {
      // Accumulated gradients are not sharded, so ZeRO 2 equals ZeRO 1.
      const bool is_stage_1 = storage.stage == 2 && !candidates_.model().reduce_each_microbatch;
      if (candidates_.is_merged(assignment, storage) || is_stage_1) continue;
      for (const size_t option : options) {
        for (size_t recompute = 0; recompute < candidates_.recompute_options(); ++recompute) {
          if (!candidates_.applies(recompute, storage)) continue;
          QueueEntry entry;
          entry.candidate = {assignment, storage, recompute, option};
          estimate(entry);
          const auto limit = static_cast<double>(limit_);
          if (limit_ == 0 || entry.transient < kTooMuch * limit) queue_.push(entry);
          if (limit_ == 0 || entry.transient < limit / kSpare) break;
        }
      }
    }
  }

  /// Estimates seconds and bytes without lowering; `transient` has all bytes.
  void estimate(QueueEntry& entry) const {
    const Candidate& c = entry.candidate;
    const Assignment& a = candidates_.assignment(c);
    const int64_t m = microbatches_of(c), stages = stages_of(c);
    const auto p = static_cast<double>(stages), count = static_cast<double>(m);
    const Estimates& estimates = candidates_.estimates(c.recompute_option);
    entry.bound = estimates.least(a, m) / p;
    const Estimates::Communication sent = estimates.communication(a, c.storage, m);
    const double filled = 1 + (p - 1) / static_cast<double>(chunks_of(stages, m).back()) / count;
    entry.guess =
        filled * (kComputing * entry.bound + sent.held_up / p) + kExposed * sent.beside / p;
    entry.key = entry.guess;
    const MemoryEstimate memory = estimates.memory(a, c.storage, m);
    // During accumulation the gradients of a microbatch exist beside their sums.
    entry.transient = (memory.stored + 2 * (memory.transient - memory.kept)) / p +
                      memory.kept * std::min(1.0, count / p);
  }

  /// True if the candidate does not fit, judging from a priced plan of its kind.
  bool is_too_large(const QueueEntry& entry) const {
    const std::optional<double> factor = corrections_.memory(entry.candidate);
    return limit_ != 0 && factor &&
           *factor * entry.transient > kSurelyTooMuch * static_cast<double>(limit_);
  }

  void price(const std::vector<QueueEntry>& batch) {
    std::vector<std::vector<PipelinePlan>> results(batch.size());
    enum class Outcome : char { priced, illegal, contradiction };
    std::vector<Outcome> outcomes(batch.size(), Outcome::priced);
    const auto work = [&](size_t i) {
      try {
        results[i] = price(batch[i].candidate);
      } catch (const Contradiction&) {
        outcomes[i] = Outcome::contradiction;
      } catch (const Error&) {
        outcomes[i] = Outcome::illegal;
      }
    };
    std::vector<std::thread> threads;
    for (size_t i = 1; i < batch.size(); ++i) threads.emplace_back(work, i);
    work(0);
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < batch.size(); ++i) {
      if (outcomes[i] == Outcome::contradiction) corrections_.set_contradiction(batch[i].candidate);
      if (outcomes[i] != Outcome::priced) continue;
      ++priced_;
      keep_best(batch[i], results[i]);
    }
  }

  /// One plan for each number of chunks.
  std::vector<PipelinePlan> price(const Candidate& c) {
    const StageTimes times = stage_pricer_.times(candidates_.assignment(c).mesh,
                                                 candidates_.layout(c), candidates_.build(c));
    std::vector<PipelinePlan> plans;
    for (const int64_t chunks : chunks_of(stages_of(c), microbatches_of(c))) {
      plans.push_back(stage_pricer_.plan(times, stages_of(c), chunks));
      PricedPlan& p = plans.back().stage;
      p.rules = candidates_.rules(c);
      p.zero = c.storage.stage;
      p.over = candidates_.stored_over(c);
    }
    return plans;
  }

  /// Keeps the plan with the best number of chunks that fits, and learns from all.
  void keep_best(const QueueEntry& entry, const std::vector<PipelinePlan>& plans) {
    const PipelinePlan* best = nullptr;
    double least = 1e300;
    int64_t fewest = plans[0].stage.memory();
    for (const PipelinePlan& p : plans) {
      fewest = std::min(fewest, p.stage.memory());
      least = std::min(least, p.stage.seconds);
      if (fits(p.stage) && (!best || p.stage.seconds < best->stage.seconds)) best = &p;
    }
    least_memory_ = least_memory_ == 0 ? fewest : std::min(least_memory_, fewest);
    const Candidate& c = entry.candidate;
    corrections_.set_time(c, least / entry.guess);
    const double ratio = static_cast<double>(fewest) / entry.transient;
    corrections_.set_memory(c, std::min(ratio, corrections_.memory(c).value_or(ratio)));
    if (!best) return;
    best_seconds_ = std::min(best_seconds_, best->stage.seconds);
    found_.push_back(*best);
  }

  Candidates candidates_;
  Stopwatch clock_;
  Corrections corrections_;
  StagePricer stage_pricer_;
  PlanQueue queue_;
  int64_t limit_, devices_;
  int64_t priced_ = 0, least_memory_ = 0;
  double best_seconds_ = 1e300;
  std::vector<PipelinePlan> found_;
};

}  // namespace

PipelinePlans plan_pipeline(const PlanModel& model, int64_t devices, const Machine& machine,
                            const PlanOptions& options) {
  require(devices >= 2, "[plan] a pipeline on {} device; there must be at least 2", devices);
  const PlanModel flat = unrolled(model);
  return PipelineSearch(flat, machine, options, devices).run();
}

}  // namespace tessera
