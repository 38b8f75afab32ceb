// Each stage has a fixed list of forwards and backwards (pipeline_turns.h). Repeated passes over
// the stages run whatever is ready, until all lists are done. A piece is ready when its input has
// arrived: from the chunk before it (forward) or after it (backward).
#include "cost/pipeline_schedule.h"

#include <algorithm>

#include "base/fail.h"
#include "cost/pipeline_turns.h"

namespace tessera {

namespace {

int64_t chunks_of_stage(const Pipeline& p) {
  return static_cast<int64_t>(p.chunks.size()) / p.stages;
}

/// The chunks of a stage forward, then backward.
PipelinePasses passes_of(const Pipeline& p) {
  const auto chunks = static_cast<size_t>(chunks_of_stage(p));
  PipelinePasses passes{std::vector<bool>(2 * chunks, false), chunks > 1};
  std::fill_n(passes.is_forward.begin(), chunks, true);
  return passes;
}

PipelineTurns turns_of(const Pipeline& p) {
  return pipeline_turns(PipelineSchedule::one_forward_one_backward, passes_of(p), p.stages,
                        p.microbatches);
}

struct StagePass {
  bool is_forward;
  int chunk;  ///< of the model
  int64_t microbatch;
};

class Player {
 public:
  explicit Player(const Pipeline& p) : p_(p), per_stage_(static_cast<int>(chunks_of_stage(p))) {
    const size_t pieces = p.chunks.size() * static_cast<size_t>(p.microbatches);
    done_[0].assign(pieces, -1);
    done_[1].assign(pieces, -1);
  }

  PipelineTime play() {
    const PipelineTurns turns = turns_of(p_);
    std::vector<std::vector<StageWork>> lists;
    for (int s = 0; s < p_.stages; ++s)
      lists.push_back(work_of_stage(turns, static_cast<size_t>(s)));
    std::vector<size_t> next(lists.size(), 0);
    std::vector<double> free(lists.size(), 0);
    time_.busy.assign(lists.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t s = 0; s < lists.size(); ++s) {
        const int stage = static_cast<int>(s);
        while (next[s] < lists[s].size() &&
               run(stage, piece_of(lists[s][next[s]], stage), free[s])) {
          ++next[s];
          moved = true;
        }
      }
    }
    for (size_t s = 0; s < lists.size(); ++s)
      TESSERA_CHECK(next[s] == lists[s].size(), "stage {} of the pipeline waits for ever", s);
    time_.stage_end = free;
    time_.seconds = *std::max_element(free.begin(), free.end());
    return std::move(time_);
  }

 private:
  double& done(bool forward, int chunk, int64_t microbatch) {
    return done_[forward ? 1 : 0][static_cast<size_t>(chunk * p_.microbatches + microbatch)];
  }

  StagePass piece_of(const StageWork& work, int stage) const {
    const int pass = static_cast<int>(work.pass);
    const bool forward = pass < per_stage_;
    const int local = forward ? pass : 2 * per_stage_ - 1 - pass;
    return {forward, local * p_.stages + stage, work.microbatch};
  }

  /// Runs a piece if its input is ready.
  bool run(int stage, const StagePass& piece, double& free) {
    const int last = static_cast<int>(p_.chunks.size()) - 1;
    double ready = 0;
    bool receives = true, sends = true;
    if (piece.is_forward) {
      receives = piece.chunk > 0;
      sends = piece.chunk < last;
      if (receives) ready = done(true, piece.chunk - 1, piece.microbatch);
    } else {
      receives = piece.chunk < last;
      sends = piece.chunk > 0;
      ready = receives ? done(false, piece.chunk + 1, piece.microbatch)
                       : done(true, piece.chunk, piece.microbatch);
    }
    if (ready < 0) return false;
    const bool moves = p_.stages > 1;
    const double begin = std::max(free, ready + (receives && moves ? p_.transfer : 0));
    const ChunkTime& chunk = p_.chunks[static_cast<size_t>(piece.chunk)];
    const double seconds = piece.is_forward ? chunk.forward : chunk.backward;
    done(piece.is_forward, piece.chunk, piece.microbatch) = begin + seconds;
    free = begin + seconds + (sends && moves && p_.blocking ? p_.transfer : 0);
    time_.busy[static_cast<size_t>(stage)] += seconds;
    time_.spans.push_back({stage, piece.chunk, piece.microbatch, piece.is_forward, begin, seconds});
    return true;
  }

  const Pipeline& p_;
  int per_stage_;
  std::vector<double> done_[2];  ///< end times of backwards [0] and forwards [1]; -1: not run yet
  PipelineTime time_;
};

}  // namespace

double PipelineTime::bubble() const {
  double sum = 0;
  for (double b : busy) sum += b;
  return seconds > 0 ? 1 - sum / seconds / static_cast<double>(busy.size()) : 0;
}

PipelineTime play_pipeline(const Pipeline& p) {
  TESSERA_REQUIRE(p.stages >= 1 && p.microbatches >= 1,
                  "a pipeline of {} stages and {} microbatches", p.stages, p.microbatches);
  TESSERA_REQUIRE(!p.chunks.empty() && p.chunks.size() % static_cast<size_t>(p.stages) == 0,
                  "{} chunks of the model cannot be dealt to {} stages", p.chunks.size(), p.stages);
  TESSERA_REQUIRE(
      p.chunks.size() == static_cast<size_t>(p.stages) || p.microbatches % p.stages == 0,
      "interleaved stages need a number of microbatches that {} stages divide; {} are given",
      p.stages, p.microbatches);
  return Player(p).play();
}

std::vector<ChunkTime> deal_layers(const std::vector<int64_t>& layers, const ChunkTime& layer,
                                   const ChunkTime& before, const ChunkTime& behind) {
  std::vector<ChunkTime> times;
  for (const int64_t n : layers) {
    const auto count = static_cast<double>(n);
    times.push_back({count * layer.forward, count * layer.backward});
  }
  for (const auto& [chunk, end] : {std::pair(&times.front(), &before), {&times.back(), &behind}}) {
    chunk->forward += end->forward;
    chunk->backward += end->backward;
  }
  return times;
}

double microbatches_held(const Pipeline& p, int stage) {
  return static_cast<double>(most_ahead(turns_of(p), passes_of(p), static_cast<size_t>(stage))) /
         static_cast<double>(chunks_of_stage(p));
}

double hand_over(const Costs& costs, double bytes, const std::vector<int>& stage,
                 const std::vector<int>& copies) {
  double ranks = 1;
  for (const int axis : copies) ranks *= costs.mesh().axes()[axis].size;
  return costs.collective(CollectiveKind::exchange, bytes / ranks, stage) +
         costs.collective(CollectiveKind::all_gather, bytes, copies);
}

}  // namespace tessera
