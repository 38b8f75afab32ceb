#include "compile/lowering.h"

#include <algorithm>
#include <bit>
#include <memory>

#include "base/env.h"
#include "base/fail.h"
#include "cost/cost.h"
#include "cost/function_time.h"
#include "kernels/cpu/takes_epilogue.h"
#include "kernels/cuda/epilogue.h"
#include "kernels/cuda/generate.h"
#include "kernels/cuda/rows.h"
#include "program/sum_order.h"

namespace tessera {

StepPrices prices_of(const Machine& machine, const Mesh& mesh) {
  const auto costs = std::make_shared<const Costs>(machine, mesh);
  if (!machine.overlap.possible) return {};
  return {[costs](const Step& step) {
            return step.kind == StepKind::collective ? costs->collective(step)
                                                     : costs->compute(step);
          },
          machine.overlap.compute, machine.overlap.transfer};
}

std::function<double(const Program&)> seconds_of(const Machine& machine, const Mesh& mesh) {
  const auto costs = std::make_shared<const Costs>(machine, mesh);
  return [costs](const Program& program) {
    double seconds = 0;
    for (const Function& f : program.functions)
      seconds += f.kind == FunctionKind::init ? 0 : total_time(f, *costs).seconds;
    return seconds;
  };
}

namespace {

/// Matmuls take epilogues and reductions prologues (passes/fuse_epilogues.h, fuse_prologues.h),
/// unless TESSERA_EPILOGUES is off, and collectives send whole blocks where rows are counted.
void lower_for_gpu(LowerOptions& lowering) {
  lowering.reads_counts = false;  // they are enqueued, or captured, before anything is counted
  lowering.target = Target::any;
  lowering.takes_epilogue = {};
  if (!may_fuse_for_gpu()) return;
  lowering.target = Target::gpu;
  lowering.takes_epilogue = cuda::takes_epilogue;
  lowering.may_own_dot = cuda::can_attend;
  lowering.longest_row = cuda::kLongestRow;
}

/// Kernels and passes that add in an order of their own are left out. A GPU has no kernels for
/// composites in this order, and computes their definitions.
void lower_strictly(const CompileOptions& options, LowerOptions& lowering) {
  TESSERA_REQUIRE(std::has_single_bit(static_cast<uint64_t>(options.strict_chunks)),
                  "strict numerics with {} chunks; their number is a power of two: 8, 16, 32",
                  options.strict_chunks);
  const bool is_gpu = options.device.starts_with("cuda");
  TESSERA_REQUIRE(!is_gpu || !options.tf32,
                  "strict numerics compute float32 matmuls in float32, not in tf32; leave "
                  "train.matmul_precision=tf32 out");
  std::erase_if(lowering.kernels, [&](const Op* op) { return is_gpu || op->in_order == nullptr; });
  if (is_gpu) lowering.target = Target::any;
  lowering.takes_epilogue = {};
  lowering.longest_row = 0;
  lowering.chunks = 1;
  lowering.variant.dispatch_chunks = 1;
}

}  // namespace

LowerOptions lowering_of(const CompileOptions& options, std::vector<FunctionSpec> functions) {
  TESSERA_REQUIRE(options.chunks >= 0,
                  "chunks is {}; 0 stands for as many as pay, 1 for none, more for so many parts",
                  options.chunks);
  LowerOptions lowering{
      options.mesh, options.layout, std::move(functions), composite_kernels(), {}, {}};
  lowering.overlap = options.overlap;
  lowering.offload_state = options.offload_state;
  lowering.wide_grad_reduce = options.wide_grad_reduce;
  lowering.reduce_each_microbatch = options.reduce_each_microbatch;
  lowering.pipeline_schedule = options.pipeline_schedule;
  lowering.chunks = options.chunks;
  lowering.strict_chunks = options.strict_chunks;
  lowering.variant = {1, options.chunks};
  lowering.takes_epilogue = cpu::takes_epilogue;
  lowering.target = Target::cpu;
  if (options.device.starts_with("cuda")) lower_for_gpu(lowering);
  if (options.strict_chunks > 0) lower_strictly(options, lowering);
  if (options.machine) lowering.prices = prices_of(*options.machine, options.mesh);
  if (lowering.prices.seconds) lowering.seconds = seconds_of(*options.machine, options.mesh);
  return lowering;
}

std::function<int64_t(const Step&)> workspace_on(const std::string& device, int threads) {
  if (!device.starts_with("cuda"))
    return [threads](const Step& step) { return workspace_bytes(step, std::max(1, threads)); };
  return [](const Step& step) { return cuda::workspace_bytes(step, true); };
}

int64_t subtree_microbatches(int64_t batch, int64_t count, int64_t chunks) {
  for (int64_t more = count; more <= batch; ++more) {
    if (batch % more == 0 && is_subtree(batch / more, batch, chunks)) return more;
  }
  return count;
}

}  // namespace tessera
