// The list of passes.
#include "lower/lower.h"

#include <algorithm>

#include "lower/flow/deal_layers.h"
#include "lower/flow/insert_padding_masks.h"
#include "lower/flow/localize.h"
#include "lower/flow/pipeline_microbatches.h"
#include "lower/partition/partition.h"
#include "lower/passes/add_products.h"
#include "lower/passes/await_late.h"
#include "lower/passes/batch_products.h"
#include "lower/passes/bucket_collectives.h"
#include "lower/passes/collective_matmul.h"
#include "lower/passes/dots_in_attention.h"
#include "lower/passes/fill_waits.h"
#include "lower/passes/fuse_epilogues.h"
#include "lower/passes/fuse_pointwise.h"
#include "lower/passes/fuse_prologues.h"
#include "lower/passes/group_tensors.h"
#include "lower/passes/keep_products.h"
#include "lower/passes/merge_reductions.h"
#include "lower/passes/plan_memory.h"
#include "lower/passes/recompute_rows.h"
#include "lower/passes/reduce_rows_first.h"
#include "lower/passes/schedule.h"
#include "lower/passes/sums_in_products.h"
#include "lower/passes/sums_in_rows.h"

namespace tessera {

namespace {

constexpr double kLeastGain = 0.99;  ///< predictions are not as good as that

void add_workspaces(Program& program, const std::function<int64_t(const Step&)>& bytes_of) {
  if (!bytes_of) return;
  for (Function* f : all_functions(program.functions)) {
    for (Step& step : f->steps) {
      const bool is_kernel = step.kind == StepKind::compute && step.body.empty();
      const int64_t bytes = is_kernel ? bytes_of(step) : 0;
      if (bytes == 0) continue;
      step.workspace = static_cast<int>(program.buffers.size());
      program.buffers.push_back({"workspace", ArenaKind::transient, bytes, 0});
    }
  }
}
/// Moves optimizer state to host memory. Scalars (a step counter) stay: moving them saves nothing.
void offload_state(const Graph& graph, Program& program) {
  for (size_t s = 0; s < program.stored.size(); ++s) {
    const View& view = program.ports[static_cast<size_t>(program.stored[s])].view;
    if (graph.stored()[s].purpose == Purpose::state && view.elements() > 1)
      program.buffers[static_cast<size_t>(view.buffer)].arena = ArenaKind::offloaded;
  }
}

/// Schedules the Program, with waits filled if that pays: what a filled wait delays may be
/// waited for in turn. `filled`: the Program before bucket_collectives, if there are prices.
void schedule_filled(Program& program, Program filled, const LowerOptions& options) {
  schedule(program, options.prices);
  if (!options.seconds) return;
  bucket_collectives(filled, options.bucket_bytes, options.prices, true);
  if (!fill_waits(filled, options.prices)) return;
  schedule(filled, options.prices);
  if (options.seconds(filled) < kLeastGain * options.seconds(program)) program = std::move(filled);
}

}  // namespace

Program lower(const Graph& graph, const LowerOptions& options) {
  auto after = [&](const char* pass, const std::function<std::string()>& text) {
    if (options.after_pass) options.after_pass(pass, text);
  };
  const RuleLayouts rule_layouts(graph, options.mesh, options.layout);
  Flow flow = partition(graph, rule_layouts, options.functions, options.kernels,
                        {options.init, options.wide_grad_reduce, options.reduce_each_microbatch,
                         options.reads_counts, options.variant});
  after("partition", [&] { return to_string(flow, options.mesh); });
  insert_padding_masks(flow, rule_layouts);
  after("insert_padding_masks", [&] { return to_string(flow, options.mesh); });
  deal_layers(rule_layouts, flow);
  after("deal_layers", [&] { return to_string(flow, options.mesh); });
  pipeline_microbatches(graph, options.pipeline_schedule, flow);
  after("pipeline_microbatches", [&] { return to_string(flow, options.mesh); });
  Program program = localize(graph, flow, rule_layouts);
  if (options.offload_state) offload_state(graph, program);
  after("localize", [&] { return to_string(program); });
  if (options.reduces_rows_first) reduce_rows_first(program, options.longest_row);
  after("reduce_rows_first", [&] { return to_string(program); });
  if (options.fuse) keep_products(program);
  after("keep_products", [&] { return to_string(program); });
  if (options.fuse) fuse_pointwise(program, options.longest_row);
  after("fuse_pointwise", [&] { return to_string(program); });
  if (options.fuse && options.takes_epilogue) {
    fuse_epilogues(program, options.takes_epilogue);
    after("fuse_epilogues", [&] { return to_string(program); });
  }
  if (options.fuse && options.fuses_prologues) {
    fuse_prologues(program);
    after("fuse_prologues", [&] { return to_string(program); });
    recompute_rows(program);
    after("recompute_rows", [&] { return to_string(program); });
  }
  if (options.fuse && options.may_own_dot) {
    dots_in_attention(program, options.may_own_dot);
    after("dots_in_attention", [&] { return to_string(program); });
  }
  Program filled;
  if (options.overlap && options.seconds) filled = program;
  bucket_collectives(program, options.bucket_bytes, options.prices);
  after("bucket_collectives", [&] { return to_string(program); });
  if (options.overlap) schedule_filled(program, std::move(filled), options);
  after("schedule", [&] { return to_string(program); });
  if (options.overlap)
    collective_matmul(program, options.chunks, options.prices, options.takes_epilogue);
  after("collective_matmul", [&] { return to_string(program); });
  if (options.fuse && options.groups_tensors) {
    group_tensors(program);
    after("group_tensors", [&] { return to_string(program); });
    sums_in_products(program, options.takes_epilogue);
    after("sums_in_products", [&] { return to_string(program); });
    merge_reductions(program);
    after("merge_reductions", [&] { return to_string(program); });
    sums_in_rows(program);
    after("sums_in_rows", [&] { return to_string(program); });
    add_products(program, options.prices, options.takes_epilogue, options.workspace_bytes);
    after("add_products", [&] { return to_string(program); });
    batch_products(program, options.prices, options.takes_epilogue, options.workspace_bytes);
    after("batch_products", [&] { return to_string(program); });
  }
  if (options.overlap) await_late(program);
  after("await_late", [&] { return to_string(program); });
  add_workspaces(program, options.workspace_bytes);
  plan_memory(program);
  after("plan_memory", [&] { return to_string(program); });
  return program;
}

}  // namespace tessera
