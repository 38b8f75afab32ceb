#include "plan/shared_work.h"

#include <limits>
#include <utility>

#include "compile/lowering.h"
#include "lower/lower.h"
#include "plan/tensor_layouts/step_sum.h"

namespace tessera {

namespace {

/// What is left if ranks fuse otherwise, because some wait for a collective in between. The largest
/// difference seen is 3 %, of batch norms.
constexpr double kFusedOtherwise = 0.9;

}  // namespace

Program on_one_rank(const PlanStep& step, const PlanModel& model) {
  CompileOptions compile{Mesh::parse("all:1"), Layout(), {}};
  compile.device = model.device;
  compile.strict_chunks = model.strict_chunks;
  compile.chunks = 1;
  LowerOptions options = lowering_of(compile, step.functions);
  options.init = false;
  options.longest_row = std::numeric_limits<int64_t>::max();
  return lower(*step.graph, options);
}

SharedWork::SharedWork(Program one, Program two, int64_t layers, std::vector<int64_t> microbatches,
                       const Machine& machine)
    : layers_(layers), microbatches_(std::move(microbatches)), machine_(&machine) {
  programs_.push_back(std::move(one));
  programs_.push_back(std::move(two));
}

double SharedWork::of(const Program& program, int64_t ranks) const {
  const Costs costs(*machine_, Mesh::parse("all:1"));
  double seconds = 0;
  for (const PlacedTimes& times : shared_sum(program, program.functions[0], costs, ranks,
                                             microbatches_, [](const auto&) { return Place(); }))
    seconds += times.all_kernels();
  return kFusedOtherwise * seconds;
}

double SharedWork::seconds(int64_t ranks) const {
  if (programs_.empty()) return 0;
  const auto [known, is_new] = known_.try_emplace(ranks, 0);
  if (is_new) {
    const double one = of(programs_[0], ranks);
    known->second = one;
    if (layers_ > 1)
      known->second += static_cast<double>(layers_ - 1) * (of(programs_[1], ranks) - one);
  }
  return known->second;
}

}  // namespace tessera
