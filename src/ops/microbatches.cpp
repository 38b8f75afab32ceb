#include <algorithm>

#include "base/fail.h"
#include "ir/loop_builder.h"
#include "ir/source_ops.h"
#include "ops/iterations.h"

namespace tessera {

namespace {

/// Throws a usage error if inputs are read after node `first` and no tensor has the microbatch dim.
void require_divided(const char* op, const Graph& g, size_t first, const std::string& dim, Loc at) {
  std::vector<std::string> known;
  const auto has_dim = [&](int value) {
    const bool is_input = g.producer(value).op == &kInput;
    for (const Dim& d : g.value(value).shape) {
      if (d.name == dim) return true;
      if (is_input) known.push_back(d.name);
    }
    return false;
  };
  for (size_t n = first; n < g.nodes().size(); ++n) {
    for (const std::vector<int>& values : {g.nodes()[n].in, g.nodes()[n].out}) {
      if (std::any_of(values.begin(), values.end(), has_dim)) return;
    }
  }
  TESSERA_REQUIRE(
      known.empty(),
      "[{}] no input that a microbatch reads has the dim '{}'{}: every one would be the whole "
      "batch ({})",
      op, dim, suggestion(dim, known), where(at));
}

/// Example i of microbatch m is example i * count + m of the batch, or the next after those of
/// microbatch m - 1 if they are contiguous.
class Microbatches {
 public:
  Microbatches(const char* op, Graph& g, const std::string& dim, int64_t count,
               const std::function<IterationResults()>& build, const LoopOptions& options, Loc at)
      : op_(op),
        g_(g),
        over_("_" + dim, count),
        dim_(dim),
        build_(build),
        options_(options),
        at_(at) {}

  IterationResults run() const {
    const bool copies = options_.unroll || is_eager(g_) || over_.size == 1;
    IterationResults all = copies ? in_copies() : in_a_loop();
    for (Tensor& t : all.stacked) t = of_batch(t);
    return all;
  }

 private:
  IterationResults in_copies() const {
    const size_t first = g_.nodes().size();
    IterationResults all;
    std::vector<std::vector<Tensor>> stacked;
    for (int64_t m = 0; m < over_.size; ++m) {
      const MicrobatchScope scope(g_, dim_, over_.size, m, options_.contiguous);
      IterationResults made = built();
      if (m == 0) stacked.resize(made.stacked.size());
      const size_t now = made.sums.size() + made.stacked.size(),
                   before = m == 0 ? now : all.sums.size() + stacked.size();
      TESSERA_REQUIRE(
          now == before && made.stacked.size() == stacked.size(),
          "[{}] microbatch {} makes {} tensors ({} with the dim '{}'), microbatch 0 {} ({}); "
          "build all alike ({})",
          op_, m, now, made.stacked.size(), dim_, before, stacked.size(), where(at_));
      for (size_t k = 0; k < stacked.size(); ++k) stacked[k].push_back(made.stacked[k]);
      add_iteration(all, std::move(made), m == 0, at_);
      if (m == 0 && !is_eager(g_)) require_divided(op_, g_, first, dim_, at_);
    }
    for (const auto& list : stacked) all.stacked.push_back(stack(list, over_.name, at_));
    return all;
  }

  IterationResults in_a_loop() const {
    const size_t first = g_.nodes().size();
    LoopBuilder loop(g_, over_);
    IterationResults made;
    {
      const RepeatScope scope(
          g_, {dim_, over_.size, 0, loop.number(), Repeat::Of::microbatch, 0, options_.contiguous});
      made = built();
      require_divided(op_, g_, first, dim_, at_);
    }
    if (made.divided) loop.note_divided();
    return results_of(loop.finish({}, made.stacked, made.sums, at_), 0, made.stacked.size());
  }

  IterationResults built() const {
    IterationResults made = build_();
    TESSERA_REQUIRE(
        made.carries.empty(),
        "[{}] a microbatch makes {} carries; microbatches do not follow one another, use "
        "scan() ({})",
        op_, made.carries.size(), where(at_));
    require_made(op_, "a microbatch's output", made.stacked, at_);
    require_made(op_, "a microbatch's sum", made.sums, at_);
    for (const Tensor& t : made.stacked) {
      TESSERA_REQUIRE(
          t.shape().has(dim_),
          "[{}] the output '{}' {} has no dim '{}' along which the microbatches make the batch; "
          "return it among the sums, or a scalar as a metric ({})",
          op_, t.name(), t.shape().to_string(), dim_, where(at_));
    }
    return made;
  }

  /// [microbatches, ..., examples, ...] as [..., batch, ...].
  Tensor of_batch(Tensor stacked) const {
    std::vector<Dim> apart, merged;
    for (const Dim& d : stacked.shape()) {
      if (d.name == over_.name) continue;
      apart.push_back(d);
      merged.push_back(d);
      if (d.name != dim_) continue;
      apart.insert(apart.end() - (options_.contiguous ? 1 : 0), over_);
      merged.back().size *= over_.size;
    }
    return reshape(transpose(stacked, Shape(apart), at_), Shape(merged), at_);
  }

  const char* op_;
  Graph& g_;
  Dim over_;
  std::string dim_;
  const std::function<IterationResults()>& build_;
  const LoopOptions& options_;
  Loc at_;
};

IterationResults microbatches(const char* op, Graph& g, const std::string& dim, int64_t count,
                              const std::function<IterationResults()>& build,
                              const LoopOptions& options, Loc at) {
  TESSERA_REQUIRE(count >= 1, "[{}] {} microbatches of '{}'; there is at least one ({})", op, count,
                  dim, where(at));
  return Microbatches(op, g, dim, count, build, options, at).run();
}

}  // namespace

IterationResults over_microbatches(Graph& g, const std::string& dim, int64_t count,
                                   const std::function<IterationResults()>& build,
                                   const LoopOptions& options, Loc at) {
  const char* op = "over_microbatches";
  require_function(op, "what builds a microbatch", build, at);
  return microbatches(op, g, dim, count, build, options, at);
}

std::vector<Tensor> sum_over_microbatches(Graph& g, const std::string& dim, int64_t count,
                                          const std::function<std::vector<Tensor>()>& build,
                                          const LoopOptions& options, Loc at) {
  const char* op = "sum_over_microbatches";
  require_function(op, "what builds a microbatch", build, at);
  std::vector<bool> has_dim;
  const auto sorted = [&] {
    IterationResults made;
    has_dim.clear();
    for (const Tensor& t : build()) {
      has_dim.push_back(!t.empty() && t.shape().has(dim));
      (has_dim.back() ? made.stacked : made.sums).push_back(t);
    }
    return made;
  };
  const IterationResults all = microbatches(op, g, dim, count, sorted, options, at);
  std::vector<Tensor> result;
  auto stacked = all.stacked.begin(), sum = all.sums.begin();
  for (const bool has : has_dim) result.push_back(has ? *stacked++ : *sum++);
  return result;
}

}  // namespace tessera
