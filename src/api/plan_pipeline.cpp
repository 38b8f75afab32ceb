// The search over pipelines: for each number of stages the layouts of a stage's devices, with the
// microbatches that fill the pipeline, best guess first. The bound is that of a stage's products;
// it drops what cannot be better than the best.
#include <algorithm>
#include <thread>

#include "api/plan_search.h"
#include "api/plan_stage.h"
#include "base/fail.h"
#include "lower/home.h"

namespace tessera {

namespace {

constexpr int64_t kMostChunks = 8;
constexpr size_t kAxes = 2;        ///< of a stage's mesh
constexpr double kSurplus = 1.25;  ///< what is guessed to leave so much free makes nothing again
constexpr double kTooMuch = 1.7;   ///< of the limit, as guessed: what is left out
constexpr double kSurelyTooMuch = 1.1;  // of the limit, as estimated from a plan of the kind
constexpr double kComputing = 1.1, kExposed = 0.1;  ///< as in the search without stages

class PipelineSearch : public PlanSearch {
 public:
  PipelineSearch(const PlanModel& flat, const Machine& machine, const PlanOptions& options)
      : PlanSearch(flat, machine, options), stage_pricer_(pricer_) {}

  PipelinePlans run(int64_t devices) {
    devices_ = devices;
    push_stages();
    std::vector<Entry> batch;
    while (take(batch)) price_batch(batch);
    PipelinePlans result;
    result.space = static_cast<int64_t>(assignments_.size());
    result.priced = priced_count_;
    result.least_memory = least_memory_;
    std::stable_sort(found_.begin(), found_.end(), [](const auto& x, const auto& y) {
      return x.stage.seconds < y.stage.seconds;
    });
    if (!found_.empty()) result.bound = found_[0].stage.seconds;
    for (; !open_.empty(); open_.pop()) result.bound = std::min(result.bound, open_.top().bound);
    if (found_.size() > options_.runners_up + 1) found_.resize(options_.runners_up + 1);
    result.plans = std::move(found_);
    result.search_seconds = seconds();
    return result;
  }

 private:
  int64_t layers() const { return pricer_.model().layers; }
  int64_t stages_of(const Entry& entry) const {
    return devices_ / assignments_[entry.assignment].mesh.size();
  }
  double best() const { return found_.empty() ? 1e300 : best_found_; }

  void push_stages() {
    bool any = false;
    for (int64_t stages = 2; stages <= std::min(layers(), devices_); ++stages) {
      if (layers() % stages != 0 || devices_ % stages != 0) continue;
      any = true;
      for (const Assignment& a : of_stage(devices_ / stages)) {
        Entry entry;
        entry.is_open = true;
        entry.assignment = assignments_.size();
        assignments_.push_back(space_.with_fixed(a));
        const std::vector<size_t> parts = parts_of(entry);
        if (parts.empty()) continue;
        entry.key = entry.bound = estimates_[0].least(assignments_.back(), microbatches(parts[0])) /
                                  static_cast<double>(stages);
        open_.push(entry);
      }
    }
    require(any,
            "[plan] {} layers and {} devices have no common divisor but 1, so there are no equal "
            "stages; give --devices or layers otherwise",
            layers(), devices_);
    require(!open_.empty(),
            "[plan] no pipeline can be filled: a stage for each of its microbatches at least, and "
            "'{}' is {}, to be cut by stages and data ranks; give a larger batch",
            pricer_.model().part, pricer_.model().microbatches.back());
  }

  std::vector<Assignment> of_stage(int64_t devices) const {
    if (devices == 1) return {{Mesh({{"data", 1}}), {0}}};
    return space_.assignments(devices, kAxes);
  }

  /// Numbers of microbatches that fill the stages and leave each rank a whole number of examples.
  std::vector<size_t> parts_of(const Entry& entry) const {
    const int part = outlines_[0].find(pricer_.model().part);
    const int64_t stages = stages_of(entry);
    int64_t ranks = 1;
    if (part >= 0) ranks = estimates_[0].cuts(assignments_[entry.assignment])[part];
    std::vector<size_t> parts;
    for (size_t i = 0; i < pricer_.model().microbatches.size(); ++i) {
      const int64_t m = microbatches(i);
      const bool fits = part < 0 || outlines_[0].sizes[part] % (m * ranks) == 0;
      if (m >= stages && fits) parts.push_back(i);
    }
    return parts;
  }

  std::vector<int64_t> chunks_of(int64_t stages, int64_t m) const {
    std::vector<int64_t> chunks = {1};
    for (int64_t v = 2; v <= kMostChunks && m % stages == 0; ++v) {
      if (layers() % (stages * v) == 0) chunks.push_back(v);
    }
    return chunks;
  }

  bool take(std::vector<Entry>& batch) {
    batch.clear();
    const double most = (found_.empty() ? 2 : 1) * options_.seconds;
    while (batch.size() < 2 && !open_.empty() && seconds() < most) {
      Entry entry = open_.top();
      open_.pop();
      if (entry.bound >= best()) continue;
      if (contradictions_.contains(assignments_[entry.assignment].picks)) continue;
      if (entry.is_open) {
        expand_stage(entry);
        continue;
      }
      if (needs_too_much(entry)) continue;
      const auto slower = slower_.find(kind_of(entry));
      const double key = entry.guess * (slower == slower_.end() ? 1 : slower->second);
      if (key > entry.key * (1 + 1e-9)) {
        entry.key = key;
        open_.push(std::move(entry));
      } else {
        batch.push_back(std::move(entry));
      }
    }
    return !batch.empty();
  }

  void expand_stage(const Entry& open) {
    Assignment& a = assignments_[open.assignment];
    if (a.mesh.size() > 1) order_axes(a);
    const std::vector<size_t> parts = parts_of(open);
    for (const Storage& storage : storages(a)) {
      // Sums of gradients are whole while microbatches pass, so that stage 2 is stage 1.
      if (is_merged(a, storage) || (storage.stage == 2 && !pricer_.model().sums_of_parts)) continue;
      for (const size_t m : parts) {
        for (size_t again = 0; again < outlines_.size(); ++again) {
          if (pricer_.model().again[again].second != "none" && storage.stage < 3) continue;
          Entry entry = open;
          entry.is_open = false;
          entry.storage = storage;
          entry.parts = m;
          entry.again = again;
          guess(entry);
          const auto limit = static_cast<double>(limit_);
          if (limit_ == 0 || entry.transient < kTooMuch * limit) open_.push(entry);
          if (limit_ == 0 || entry.transient < limit / kSurplus) break;
        }
      }
    }
  }

  /// Seconds and bytes as far as they are known without lowering; `transient` counts all of them.
  void guess(Entry& entry) const {
    const Assignment& a = assignments_[entry.assignment];
    const int64_t m = microbatches(entry.parts), stages = stages_of(entry);
    const auto p = static_cast<double>(stages), count = static_cast<double>(m);
    const Estimates& estimate = estimates_[entry.again];
    entry.bound = estimate.least(a, m) / p;
    const Estimates::Exchanges sent = estimate.exchanges(a, entry.storage, m);
    const double filled = 1 + (p - 1) / static_cast<double>(chunks_of(stages, m).back()) / count;
    entry.guess =
        filled * (kComputing * entry.bound + sent.held_up / p) + kExposed * sent.beside / p;
    entry.key = entry.guess;
    const MemoryEstimate memory = estimate.memory(a, entry.storage, m);
    // Gradients of a microbatch are made beside the sums.
    entry.transient = (memory.stored + 2 * (memory.transient - memory.kept)) / p +
                      memory.kept * std::min(1.0, count / p);
  }

  /// By what a plan of the same kind with other stages needed.
  bool needs_too_much(const Entry& entry) const {
    const auto larger = larger_.find(kind_of(entry));
    return limit_ != 0 && larger != larger_.end() &&
           larger->second * entry.transient > kSurelyTooMuch * static_cast<double>(limit_);
  }

  void price_batch(const std::vector<Entry>& batch) {
    std::vector<std::vector<PipelinePlan>> results(batch.size());
    enum class Outcome : char { priced, illegal, contradiction };
    std::vector<Outcome> outcomes(batch.size(), Outcome::priced);
    const auto work = [&](size_t i) {
      try {
        results[i] = price_entry(batch[i]);
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
      if (outcomes[i] == Outcome::contradiction)
        contradictions_.insert(assignments_[batch[i].assignment].picks);
      if (outcomes[i] != Outcome::priced) continue;
      ++priced_count_;
      keep(batch[i], results[i]);
    }
  }

  std::vector<PipelinePlan> price_entry(const Entry& entry) {
    const Assignment& a = assignments_[entry.assignment];
    const StagePricer::Parts parts = stage_pricer_.parts(a.mesh, layout_of(entry), build_of(entry));
    std::vector<PipelinePlan> plans;
    for (const int64_t chunks : chunks_of(stages_of(entry), microbatches(entry.parts))) {
      plans.push_back(stage_pricer_.plan(parts, stages_of(entry), chunks));
      PricedPlan& p = plans.back().stage;
      p.rules = rules_of(entry);
      p.zero = entry.storage.stage;
      p.over = over_text(entry);
    }
    return plans;
  }

  /// The best number of chunks that fits.
  void keep(const Entry& entry, const std::vector<PipelinePlan>& plans) {
    const PipelinePlan* best = nullptr;
    double least = 1e300;
    int64_t fewest = plans[0].stage.memory();
    for (const PipelinePlan& p : plans) {
      fewest = std::min(fewest, p.stage.memory());
      least = std::min(least, p.stage.seconds);
      if (fits(p.stage) && (!best || p.stage.seconds < best->stage.seconds)) best = &p;
    }
    least_memory_ = least_memory_ == 0 ? fewest : std::min(least_memory_, fewest);
    slower_[kind_of(entry)] = least / entry.guess;
    const double ratio = static_cast<double>(fewest) / entry.transient;
    double& larger = larger_.try_emplace(kind_of(entry), ratio).first->second;
    larger = std::min(larger, ratio);
    if (!best) return;
    best_found_ = found_.empty() ? best->stage.seconds : std::min(best_found_, best->stage.seconds);
    found_.push_back(*best);
  }

  StagePricer stage_pricer_;
  int64_t devices_ = 1, priced_count_ = 0, least_memory_ = 0;
  double best_found_ = 0;
  std::priority_queue<Entry> open_;
  std::vector<PipelinePlan> found_;
};

}  // namespace

PipelinePlans plan_pipeline(const PlanModel& model, int64_t devices, const Machine& machine,
                            const PlanOptions& options) {
  require(devices >= 2, "[plan] a pipeline on {} device; there must be at least 2", devices);
  const PlanModel flat = unrolled(model);
  return PipelineSearch(flat, machine, options).run(devices);
}

}  // namespace tessera
