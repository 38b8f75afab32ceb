// At fixed distances: with P stages, stage s has microbatch m forward in turn 2m + s and backward
// in turn 2m + 2P - 1 - s, so no more than P - s microbatches are under way. Neighbours swap: where
// one goes on with forward, the other one goes on with backward.
//
// Interleaved: P microbatches pass through each chunk in turn. Each stage has a fixed list: some
// forwards ahead, then a forward and a backward in turn. Every stage runs the next entry of its
// list as soon as it can. With v chunks, M microbatches (a multiple of P) take 2Mv + 2(P - 1)
// turns of a v-th of a stage's layers.
#include "cost/pipeline_turns.h"

#include <algorithm>
#include <utility>

#include "base/fail.h"

namespace tessera {

namespace {

using enum PipelineSchedule;

PipelineTurns no_turns(size_t passes, int64_t stages, int64_t microbatches) {
  PipelineTurns turns{stages, microbatches, 0, {}};
  const std::vector<int64_t> none(static_cast<size_t>(microbatches), -1);
  turns.of.assign(passes, std::vector(static_cast<size_t>(stages), none));
  return turns;
}

void set_turn(PipelineTurns& turns, size_t pass, int64_t stage, int64_t microbatch, int64_t turn) {
  turns.of[pass][static_cast<size_t>(stage)][static_cast<size_t>(microbatch)] = turn;
  turns.count = std::max(turns.count, turn + 1);
}

PipelineTurns at_fixed_distances(PipelineSchedule schedule, const std::vector<bool>& is_forward,
                                 int64_t stages, int64_t microbatches) {
  PipelineTurns turns = no_turns(is_forward.size(), stages, microbatches);
  const bool has_backward = std::count(is_forward.begin(), is_forward.end(), false) > 0;
  const int64_t stride = schedule == one_forward_one_backward && has_backward ? 2 : 1;
  const int64_t across = stages - 1;
  int64_t now = 0;
  for (size_t p = 0; p < is_forward.size(); ++p) {
    // Forward is in the turns of a stage's own parity, backward in the others.
    const int64_t on_first = is_forward[p] ? now : now + across;
    if (stride == 2 && (on_first % 2 == 0) != is_forward[p]) ++now;
    for (int64_t s = 0; s < stages; ++s) {
      const int64_t first = now + (is_forward[p] ? s : across - s);
      for (int64_t m = 0; m < microbatches; ++m) set_turn(turns, p, s, m, stride * m + first);
    }
    now = schedule == gpipe ? 0 : now + stages;
  }
  return turns;
}

class Interleaver {
 public:
  Interleaver(const std::vector<bool>& is_forward, int64_t stages, int64_t microbatches)
      : is_forward_(is_forward),
        stages_(stages),
        rounded_((microbatches + stages - 1) / stages * stages),
        turns_(no_turns(is_forward.size(), stages, microbatches)) {
    forwards_ = std::count(is_forward.begin(), is_forward.end(), true);
    chunks_ = std::max(forwards_, std::ssize(is_forward) - forwards_);
  }

  PipelineTurns run() {
    std::vector<std::vector<StageWork>> lists;
    for (int64_t s = 0; s < stages_; ++s) lists.push_back(list_of(s));
    std::vector<size_t> next(lists.size(), 0);
    for (int64_t turn = 0; has_work(lists, next); ++turn) {
      std::vector<int64_t> running;
      for (int64_t s = 0; s < stages_; ++s) {
        const auto at = static_cast<size_t>(s);
        if (next[at] < lists[at].size() && is_ready(lists[at][next[at]], s)) running.push_back(s);
      }
      TESSERA_CHECK(!running.empty(), "turn {} of an interleaved pipeline: all stages wait", turn);
      for (const int64_t s : running) {
        const auto at = static_cast<size_t>(s);
        const StageWork& work = lists[at][next[at]++];
        set_turn(turns_, work.pass, s, work.microbatch, turn);
      }
    }
    return std::move(turns_);
  }

 private:
  /// The k-th forward or backward of a stage, if as many chunks go either way and stages divide the
  /// number of microbatches.
  StageWork nth(int64_t k, bool forward) const {
    const int64_t round = stages_ * chunks_, chunk = k % round / stages_;
    return {static_cast<size_t>(forward ? chunk : forwards_ + chunk),
            k / round * stages_ + k % stages_};
  }

  std::vector<StageWork> list_of(int64_t stage) const {
    const int64_t all = rounded_ * chunks_;
    int64_t ahead = std::min(all, 2 * (stages_ - 1 - stage) + (chunks_ - 1) * stages_);
    if (rounded_ == stages_) ahead = all;
    std::vector<StageWork> list;
    const auto add = [&](int64_t k, bool forward) {
      const StageWork work = nth(k, forward);
      const auto passes = forward ? forwards_ : std::ssize(is_forward_);
      if (static_cast<int64_t>(work.pass) < passes && work.microbatch < turns_.microbatches)
        list.push_back(work);
    };
    for (int64_t k = 0; k < ahead; ++k) add(k, true);
    for (int64_t k = 0; k < all; ++k) {
      if (ahead + k < all) add(ahead + k, true);
      add(k, false);
    }
    return list;
  }

  static bool has_work(const std::vector<std::vector<StageWork>>& lists,
                       const std::vector<size_t>& next) {
    for (size_t s = 0; s < lists.size(); ++s) {
      if (next[s] < lists[s].size()) return true;
    }
    return false;
  }

  /// True if what the work begins with has been made.
  bool is_ready(const StageWork& work, int64_t stage) const {
    const auto is_done = [&](size_t pass, int64_t s) {
      return turns_.of[pass][static_cast<size_t>(s)][static_cast<size_t>(work.microbatch)] >= 0;
    };
    const bool forward = is_forward_[work.pass];
    if (stage != (forward ? 0 : stages_ - 1))
      return is_done(work.pass, forward ? stage - 1 : stage + 1);
    return work.pass == 0 || is_done(work.pass - 1, is_forward_[work.pass - 1] ? stages_ - 1 : 0);
  }

  const std::vector<bool>& is_forward_;
  const int64_t stages_, rounded_;  ///< rounded: microbatches, up to a multiple of the stages
  int64_t forwards_ = 0, chunks_ = 0;
  PipelineTurns turns_;
};

}  // namespace

PipelineTurns pipeline_turns(PipelineSchedule schedule, const PipelinePasses& passes,
                             int64_t stages, int64_t microbatches) {
  if (!passes.interleaved)
    return at_fixed_distances(schedule, passes.is_forward, stages, microbatches);
  TESSERA_CHECK(schedule == one_forward_one_backward, "only 1F1B is interleaved");
  TESSERA_CHECK(std::is_sorted(passes.is_forward.rbegin(), passes.is_forward.rend()),
                "a pass of an interleaved pipeline goes forward after one that goes backward");
  return Interleaver(passes.is_forward, stages, microbatches).run();
}

std::vector<StageWork> work_of_stage(const PipelineTurns& turns, size_t stage) {
  std::vector<std::pair<int64_t, StageWork>> work;
  for (size_t p = 0; p < turns.of.size(); ++p) {
    for (int64_t m = 0; m < turns.microbatches; ++m)
      work.push_back({turns.of[p][stage][static_cast<size_t>(m)], {p, m}});
  }
  std::stable_sort(work.begin(), work.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<StageWork> list;
  for (const auto& [turn, one] : work) list.push_back(one);
  return list;
}

int64_t most_ahead(const PipelineTurns& turns, const PipelinePasses& passes, size_t stage) {
  int64_t ahead = 0, most = 0;
  for (const StageWork& work : work_of_stage(turns, stage))
    most = std::max(most, ahead += passes.is_forward[work.pass] ? 1 : -1);
  return most;
}

}  // namespace tessera
