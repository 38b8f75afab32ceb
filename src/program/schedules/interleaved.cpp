// Interleaved 1F1B, in the order of Megatron-LM (Narayanan et al. 2021). P microbatches pass
// through each chunk in turn. Each stage has a fixed list: some forwards ahead, then a forward and
// a backward alternate. With v chunks, M microbatches (a multiple of P) take 2Mv + 2(P - 1) ticks
// of a v-th of a stage's layers.
#include <algorithm>
#include <limits>

#include "base/fail.h"
#include "program/schedules/schedules.h"

namespace tessera {

namespace {

class Interleaver {
 public:
  explicit Interleaver(const PipelineShape& shape) : shape_(shape), stages_(shape.stages) {
    const auto is_forward = [](const PipelinePass& p) { return p.work == StageWork::forward; };
    const auto& passes = shape.passes;
    TESSERA_CHECK(std::is_partitioned(passes.begin(), passes.end(), is_forward),
                  "a pass of an interleaved pipeline is forward behind one that is backward");
    forwards_ = std::count_if(passes.begin(), passes.end(), is_forward);
    chunks_ = std::max(forwards_, std::ssize(passes) - forwards_);
    rounded_ = (shape.microbatches + stages_ - 1) / stages_ * stages_;
  }

  std::vector<ScheduledWork> list_of(int64_t stage) const {
    const int64_t all = rounded_ * chunks_;
    int64_t ahead = std::min(all, 2 * (stages_ - 1 - stage) + (chunks_ - 1) * stages_);
    if (rounded_ == stages_) ahead = all;
    std::vector<ScheduledWork> list;
    for (int64_t k = 0; k < ahead; ++k) add(k, true, list);
    for (int64_t k = 0; k < all; ++k) {
      if (ahead + k < all) add(ahead + k, true, list);
      add(k, false, list);
    }
    return list;
  }

 private:
  /// Adds the k-th forward or backward of a stage. They are counted as if as many chunks went
  /// either way and the number of stages divided that of microbatches; others are left out.
  void add(int64_t k, bool forward, std::vector<ScheduledWork>& list) const {
    const int64_t round = stages_ * chunks_, chunk = k % round / stages_;
    const ScheduledWork work{static_cast<size_t>(forward ? chunk : forwards_ + chunk),
                             k / round * stages_ + k % stages_};
    const auto passes = forward ? forwards_ : std::ssize(shape_.passes);
    if (static_cast<int64_t>(work.pass) < passes && work.microbatch < shape_.microbatches)
      list.push_back(work);
  }

  const PipelineShape& shape_;
  const int64_t stages_;
  int64_t forwards_ = 0, chunks_ = 0;
  int64_t rounded_ = 0;  ///< microbatches, up to a multiple of the stages
};

PipelineTable interleaved_table(const PipelineShape& shape) {
  const Interleaver interleaver(shape);
  std::vector<std::vector<ScheduledWork>> lists;
  for (int64_t s = 0; s < shape.stages; ++s) lists.push_back(interleaver.list_of(s));
  return run_lists(shape, lists);
}

double interleaved_kept(double stages, double microbatches, double chunks) {
  return std::min(microbatches, stages + (stages - 1) / chunks);
}

}  // namespace

ScheduleRow interleaved() {
  return {.what = {.name = "interleaved",
                   .description = "1f1b that wants several chunks of layers a stage",
                   .least_chunks = 2,
                   .most_chunks = std::numeric_limits<int64_t>::max(),
                   .is_planned = false},
          .table = interleaved_table,
          .kept = interleaved_kept};
}

}  // namespace tessera
