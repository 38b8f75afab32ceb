// A matmul and the collective of its result are cut into chunks along the outermost dim in memory:
//   y = matmul             y0 = matmul; start y0; y1 = matmul; start y1; ...
//   start y; ...; wait  ->  ...; wait y0; wait y1
// An all-gather and the matmul right after its wait are cut likewise:
//   start x; ...; wait     start x0; start x1; ...
//   matmul of x        ->  wait x0; matmul of x0; wait x1; matmul of x1
// Pointwise steps between a matmul and its collective are cut with it. Chunks are ranges of the
// same buffers, in the same order, so the schedule around them stays as it is. The time saved is
// simulated with the prices: a chunk's collective starts when the chunk is computed and the
// collective before it is done. It takes at least its share of the whole collective's time.
#include "lower/passes/collective_matmul.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "collectives/cost.h"
#include "lower/passes/fuse_merge.h"
#include "lower/passes/liveness.h"

namespace tessera {

namespace {

/// The count of a collective that is divided if it is sent in chunks; null: it is never.
auto* divided_count(auto& step) {
  auto* const all = std::get_if<AllReduceSpec>(&step.spec);
  auto* const blocks = std::get_if<BlocksSpec>(&step.spec);
  return all != nullptr ? &all->count : blocks != nullptr ? &blocks->outer : nullptr;
}

constexpr std::array kChunks = {2, 4, 8};
constexpr size_t kSkipped = 4;
constexpr double kNothing = 1e-12;  ///< seconds; less is rounding error

/// The expression plus `by`, with its bounds moved along.
AffineExpr moved(AffineExpr e, int64_t by) {
  e.constant += by * e.divisor;
  if (e.lo != std::numeric_limits<int64_t>::min()) e.lo += by;
  if (e.hi != std::numeric_limits<int64_t>::max()) e.hi += by;
  return e;
}

View chunk_of(View view, size_t dim, int64_t chunk, int64_t chunks) {
  const int64_t size = view.sizes[dim] / chunks;
  view.offset += chunk * size * view.strides[dim];
  view.sizes[dim] = size;
  return view;
}

/// Adds `by` to all indices along `dim`.
void move_indices(Step& step, size_t dim, int64_t by) {
  const auto add = [&](int expr, int64_t change) {
    step.exprs.push_back(moved(step.exprs[static_cast<size_t>(expr)], change));
    return static_cast<int>(step.exprs.size()) - 1;
  };
  for (Instr& instr : step.pointwise.code) {
    const bool is_here = instr.slot == static_cast<int>(dim);
    if (instr.code == PointwiseOp::index && is_here) instr.expr = add(instr.expr, by);
    if (instr.code == PointwiseOp::mask && is_here) instr.expr = add(instr.expr, -by);
    if (instr.code != PointwiseOp::random) continue;
    const auto first = step.exprs.begin() + instr.expr;
    const std::vector<AffineExpr> own(first,
                                      first + 2 + 2 * static_cast<long>(step.out[0].sizes.size()));
    instr.expr = static_cast<int>(step.exprs.size());
    step.exprs.insert(step.exprs.end(), own.begin(), own.end());
    AffineExpr& offset = step.exprs[static_cast<size_t>(instr.expr) + 2 + 2 * dim];
    offset = moved(offset, by);
  }
}

/// A step, and the dim of its iteration space along which it is cut.
struct Cut {
  int step = -1;
  size_t dim = 0;
};

Step chunk_of(const Step& whole, size_t dim, int64_t chunk, int64_t chunks) {
  Step step = whole;
  const int64_t size = whole.out[0].sizes[dim];
  for (auto* views : {&step.in, &step.out}) {
    for (View& v : *views) {
      if (v.sizes[dim] == size) v = chunk_of(v, dim, chunk, chunks);
    }
  }
  step.flops = whole.flops / chunks;
  if (is_pointwise(step)) move_indices(step, dim, chunk * size / chunks);
  return step;
}

/// The first dim of a contiguous view that is longer than 1.
size_t outermost(const View& view) {
  size_t dim = 0;
  while (dim + 1 < view.sizes.size() && view.sizes[dim] == 1) ++dim;
  return dim;
}

/// Finds the dim along which a compute step can be cut so that chunk k touches range k of `view`.
/// `like`: the view of the same buffer in another step.
bool find_dim(const Step& step, const View& view, const View& like, size_t& dim) {
  if (like.sizes.empty() || !like.is_contiguous() || view.buffer != like.buffer) return false;
  if (view.offset != like.offset || !(view.shift == like.shift)) return false;
  const int64_t size = like.sizes[outermost(like)], stride = like.strides[outermost(like)];
  for (dim = 0; dim < view.sizes.size(); ++dim) {
    if (view.sizes[dim] != size || view.strides[dim] != stride || size == 1) continue;
    const bool is_row = is_pointwise(step) && row_dim(step.pointwise) == int(dim);
    const bool all_cut = std::all_of(step.out.begin(), step.out.end(), [&](const View& v) {
      return v.sizes[dim] == size && v.strides[dim] != 0;
    });
    return !is_row && all_cut;
  }
  return false;
}

bool is_matmul(const Step& step) {
  return step.kind == StepKind::compute && info_of(step.kernel).cost == KernelCost::matmul;
}

bool is_cuttable(const Step& step) {
  return step.kind == StepKind::compute && step.body.empty() && info_of(step.kernel).is_cuttable;
}

class Chunker {
 public:
  Chunker(Program& program, Function& function, int chunks, const StepPrices& prices,
          const std::function<bool(const Step&)>& takes, int& number)
      : program_(program),
        function_(function),
        chunks_(chunks),
        prices_(prices),
        takes_(takes),
        number_(number) {}

  void run() {
    for (int s = static_cast<int>(function_.steps.size()) - 1; s >= function_.early; --s) {
      const Step& step = function_.steps[s];
      if (step.kind != StepKind::collective || (s > 0 && at(s - 1).number == step.number)) continue;
      start_ = s;
      for (end_ = s; at(end_ + 1).number == step.number && is_collective(end_ + 1);) ++end_;
      for (wait_ = end_ + 1; is_collective(wait_) || at(wait_).number != step.number;) ++wait_;
      if (wait_ >= last()) continue;
      if (!cut_result()) cut_operand();
    }
  }

 private:
  const Step& at(int s) const { return function_.steps[static_cast<size_t>(s)]; }
  bool is_collective(int s) const { return at(s).kind == StepKind::collective; }
  /// The end of the steps that may be cut: the stores, or the late waits before them.
  int last() const {
    const bool stores = function_.updates || function_.overlaps;
    return (stores ? function_.first_update : static_cast<int>(function_.steps.size())) -
           function_.late;
  }

  /// Cuts "y = matmul; pointwise steps; start".
  bool cut_result() {
    const View operand = at(start_).in[0];
    if (end_ != start_ || info_of(at(start_).collective).grows) return false;
    std::vector<Cut> chain;
    skipped_.clear();
    View wanted = operand;
    for (int s = start_ - 1; s >= function_.early && at(s).kind == StepKind::compute; --s) {
      const Step& step = at(s);
      if (!writes(step, wanted.buffer)) {  // not part of the chain
        if (!step.body.empty() || skipped_.size() == kSkipped) return false;
        skipped_.push_back(s);
        continue;
      }
      Cut cut{s, 0};
      if (!is_cuttable(step) || !may_follow_skipped(step) ||
          !find_dim(step, step.out[0], wanted, cut.dim))
        return false;
      chain.insert(chain.begin(), cut);
      if (is_matmul(step)) return emit_best(chain, true);
      if (!find_made(step, cut.dim, wanted)) return false;
    }
    return false;
  }

  static bool writes(const Step& step, int buffer) {
    return std::any_of(step.out.begin(), step.out.end(),
                       [&](const View& v) { return v.buffer == buffer; });
  }
  static bool touches(const Step& step, int buffer) {
    return writes(step, buffer) || std::any_of(step.in.begin(), step.in.end(),
                                               [&](const View& v) { return v.buffer == buffer; });
  }

  /// True if neither this step nor the skipped ones depend on each other.
  bool may_follow_skipped(const Step& step) const {
    return std::all_of(skipped_.begin(), skipped_.end(), [&](int s) {
      const auto touched_here = [&](const View& v) { return touches(step, v.buffer); };
      const auto touched_there = [&](const View& v) { return touches(at(s), v.buffer); };
      return std::none_of(at(s).out.begin(), at(s).out.end(), touched_here) &&
             std::none_of(step.out.begin(), step.out.end(), touched_there);
    });
  }

  /// Finds the operand of a pointwise step whose producer comes last, as rows along `dim`.
  bool find_made(const Step& step, size_t dim, View& wanted) const {
    const int here = static_cast<int>(&step - function_.steps.data());
    for (int s = here - 1; s >= function_.early && at(s).kind == StepKind::compute; --s) {
      for (const View& made : step.in) {
        if (!writes(at(s), made.buffer) || made.strides[dim] == 0) continue;
        const bool alike = std::all_of(step.in.begin(), step.in.end(), [&](const View& v) {
          return v.buffer != made.buffer || v == made;
        });
        if (!alike || !(made.shift == AffineExpr{})) return false;
        wanted = made;
        wanted.sizes = {made.sizes[dim], made.strides[dim]};
        wanted.strides = {made.strides[dim], 1};
        return is_cuttable(at(s));
      }
    }
    return false;
  }

  /// Cuts "start; ...; wait; matmul".
  bool cut_operand() {
    const int reader = wait_ + 1;
    if (reader >= last() || !info_of(at(start_).collective).grows || !is_matmul(at(reader)))
      return false;
    for (int member = start_; member <= end_; ++member) {
      for (const View& v : at(reader).in) {
        Cut cut{reader, 0};
        if (find_dim(at(reader), v, at(member).out[0], cut.dim)) return emit_best({cut}, false);
      }
    }
    return false;
  }

  bool divides(int64_t chunks, const std::vector<Cut>& chain) const {
    for (int s = start_; s <= end_; ++s) {
      const Step& c = at(s);
      const int64_t* count = divided_count(c);
      if (count == nullptr) return false;
      if (!c.in[0].is_contiguous() || !c.out[0].is_contiguous()) return false;
      if (c.in[0].sizes.empty()) return false;
      if (*count % chunks != 0) return false;
      for (const View* v : {&c.in[0], &c.out[0]}) {
        if (v->sizes[outermost(*v)] % chunks != 0) return false;
      }
    }
    return std::all_of(chain.begin(), chain.end(), [&](const Cut& cut) {
      const Step& step = at(cut.step);
      const bool ends = is_matmul(step) && !step.pointwise.code.empty();
      return step.out[0].sizes[cut.dim] % chunks == 0 &&
             (!ends || takes_(chunk_of(step, cut.dim, 0, chunks)));
    });
  }

  Step collective_chunk(const Step& whole, int64_t chunk, int64_t chunks) const {
    Step step = whole;
    for (View* v : {&step.in[0], &step.out[0]}) *v = chunk_of(*v, outermost(*v), chunk, chunks);
    *divided_count(step) /= chunks;
    const View& large = counted_operand(step);
    int ranks = 1;
    for (const int axis : step.axes) ranks *= program_.axis_sizes[static_cast<size_t>(axis)];
    step.bytes = bytes_sent(step.collective, large.elements() * size_of(large.dtype), ranks);
    step.origin.reason += (step.origin.reason.empty() ? "" : "; ") + std::string("part ") +
                          std::to_string(chunk + 1) + " of " + std::to_string(chunks);
    return step;
  }

  double seconds_of(const std::vector<Cut>& chain, int64_t chunks) const {
    double sum = 0;
    for (const Cut& cut : chain) sum += prices_.seconds(chunk_of(at(cut.step), cut.dim, 0, chunks));
    return sum;
  }

  /// Seconds of the chain and its collective in `chunks` chunks, with the steps between start and
  /// wait.
  double seconds(const std::vector<Cut>& chain, bool is_result, int64_t chunks) const {
    double between = 0, transfer = 0;
    for (int s = end_ + 1; s < wait_; ++s) {
      if (at(s).kind == StepKind::compute && at(s).body.empty()) between += prices_.seconds(at(s));
    }
    for (int s = start_; s <= end_; ++s) {
      const double share = prices_.seconds(at(s)) / static_cast<double>(chunks);
      transfer += std::max(share, prices_.seconds(collective_chunk(at(s), 0, chunks)));
    }
    std::vector<double> work(static_cast<size_t>(chunks), seconds_of(chain, chunks));
    work.insert(is_result ? work.end() : work.begin(), between);
    return simulate(work, std::vector<double>(static_cast<size_t>(chunks), transfer), is_result);
  }

  /// Seconds until all work and transfers are done. Transfer k follows chunk k (`is_result`) or
  /// precedes it.
  double simulate(std::vector<double> work, std::vector<double> transfers, bool is_result) const {
    size_t computed = 0, sent = 0;
    double now = 0;
    while (computed < work.size() || sent < transfers.size()) {
      const bool computes = computed < work.size() && (is_result || computed <= sent),
                 sends = sent < transfers.size() && (!is_result || sent < computed);
      const double slow = computes && sends ? prices_.compute : 1,
                   slow_sent = computes && sends ? prices_.transfer : 1;
      double step = std::numeric_limits<double>::infinity();
      if (computes) step = std::min(step, work[computed] * slow);
      if (sends) step = std::min(step, transfers[sent] * slow_sent);
      now += step;
      if (computes && (work[computed] -= step / slow) <= kNothing) ++computed;
      if (sends && (transfers[sent] -= step / slow_sent) <= kNothing) ++sent;
    }
    return now;
  }

  bool emit_best(const std::vector<Cut>& chain, bool is_result) {
    int64_t best = 1;
    if (chunks_ > 1) {
      best = divides(chunks_, chain) ? chunks_ : 1;
    } else if (prices_.seconds && divides(kChunks[0], chain)) {
      double least = seconds(chain, is_result, 1);
      for (const int64_t chunks : kChunks) {
        if (!divides(chunks, chain)) break;
        const double with = seconds(chain, is_result, chunks);
        if (with < least) least = with, best = chunks;
      }
    }
    return best > 1 && emit(chain, is_result, best);
  }

  /// Replaces the steps by their chunks. Returns false and changes nothing if the peak of live
  /// bytes would grow.
  bool emit(const std::vector<Cut>& chain, bool is_result, int64_t chunks) {
    std::vector<Step> steps, waits;
    const std::vector<Step> old = function_.steps;
    const auto begin = is_result ? chain.front().step : start_;
    const auto add_collectives = [&](int64_t k) {
      const int number = k == 0 ? old[static_cast<size_t>(start_)].number : number_++;
      for (int s = start_; s <= end_; ++s) {
        steps.push_back(collective_chunk(old[static_cast<size_t>(s)], k, chunks));
        steps.back().number = number;
      }
      waits.push_back(old[static_cast<size_t>(wait_)]);
      waits.back().number = number;
    };
    const auto add_chain = [&](int64_t k) {
      for (const Cut& cut : chain)
        steps.push_back(chunk_of(old[static_cast<size_t>(cut.step)], cut.dim, k, chunks));
    };
    steps.assign(old.begin(), old.begin() + begin);
    for (auto s = skipped_.rbegin(); is_result && s != skipped_.rend(); ++s) {
      if (*s > begin) steps.push_back(old[static_cast<size_t>(*s)]);
    }
    for (int64_t k = 0; k < chunks; ++k) {
      if (is_result) add_chain(k);
      add_collectives(k);
    }
    steps.insert(steps.end(), old.begin() + end_ + 1, old.begin() + wait_);
    for (int64_t k = 0; k < chunks; ++k) {
      steps.push_back(waits[static_cast<size_t>(k)]);
      if (!is_result) add_chain(k);
    }
    steps.insert(steps.end(), old.begin() + wait_ + (is_result ? 1 : 2), old.end());
    const int64_t before = peak_live_bytes(program_, function_);
    function_.steps = std::move(steps);
    if (peak_live_bytes(program_, function_) > before) {
      function_.steps = old;
      return false;
    }
    if (function_.first_update > wait_)
      function_.first_update +=
          static_cast<int>(function_.steps.size()) - static_cast<int>(old.size());
    return true;
  }

  Program& program_;
  Function& function_;
  const int chunks_;
  const StepPrices& prices_;
  const std::function<bool(const Step&)>& takes_;
  int& number_;                         ///< the next free bucket number
  int start_ = 0, end_ = 0, wait_ = 0;  ///< of the bucket: first and last member, wait
  std::vector<int> skipped_;            ///< steps between those of the chain; they go before it
};

}  // namespace

void collective_matmul(Program& program, int chunks, const StepPrices& prices,
                       const std::function<bool(const Step&)>& takes) {
  if (chunks == 1 || (chunks == 0 && !prices.seconds)) return;
  int number = 0;
  for (Function* f : all_functions(program.functions)) {
    for (const Step& step : f->steps) number = std::max(number, step.number + 1);
  }
  for (Function* f : all_functions(program.functions))
    Chunker(program, *f, chunks, prices, takes, number).run();
}

}  // namespace tessera
