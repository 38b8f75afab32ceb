// The passes, in the order in which they run.
#include "lower/lower.h"

#include <algorithm>

#include "lower/flow/assign_virtual_stages.h"
#include "lower/flow/insert_padding_masks.h"
#include "lower/flow/localize.h"
#include "lower/flow/pipeline_microbatches.h"
#include "lower/partition/partition.h"
#include "lower/passes/await_late.h"
#include "lower/passes/batch_matmuls.h"
#include "lower/passes/bucket_collectives.h"
#include "lower/passes/collective_matmul.h"
#include "lower/passes/concat_k_matmuls.h"
#include "lower/passes/fill_waits.h"
#include "lower/passes/fuse_attention_delta.h"
#include "lower/passes/fuse_bias_grad.h"
#include "lower/passes/fuse_epilogues.h"
#include "lower/passes/fuse_norm_grad_sums.h"
#include "lower/passes/fuse_pointwise.h"
#include "lower/passes/fuse_prologues.h"
#include "lower/passes/group_tensors.h"
#include "lower/passes/merge_reductions.h"
#include "lower/passes/plan_memory.h"
#include "lower/passes/recompute_rows.h"
#include "lower/passes/save_expert_activations.h"
#include "lower/passes/schedule.h"
#include "lower/passes/two_stage_reduce.h"
#include "tessera/explain.h"

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

/// A model on its way through the passes.
struct Lowering {
  const Graph& graph;
  const LowerOptions& options;
  const RuleLayouts& rule_layouts;
  Flow flow = {};
  Program program = {};     ///< from localize on
  Program unbucketed = {};  ///< before bucket_collectives, if schedule_filled() needs it
  bool is_program = false;

  std::string text() const {
    return is_program ? to_string(program) : to_string(flow, options.mesh);
  }
};

enum class Needs : uint8_t { nothing, fuse, overlap };  ///< of LowerOptions

struct Pass {
  const char* name;
  Target target;
  Needs needs;
  const char* does;
  void (*run)(Lowering& l);
};

const Pass kPasses[] = {
    {"partition", Target::any, Needs::nothing,
     "splits every op, and inserts the resharding (Graph to flow)",
     [](Lowering& l) {
       const LowerOptions& o = l.options;
       l.flow = partition(l.graph, l.rule_layouts, o.functions, o.kernels,
                          {o.init, o.wide_grad_reduce, o.reduce_each_microbatch, o.reads_counts,
                           o.strict_chunks, o.variant});
     }},
    {"insert_padding_masks", Target::any, Needs::nothing, "masks padding that an op would count",
     [](Lowering& l) { insert_padding_masks(l.flow, l.rule_layouts); }},
    {"assign_virtual_stages", Target::any, Needs::nothing,
     "cuts the layers of pipeline stages into chunks",
     [](Lowering& l) {
       assign_virtual_stages(l.rule_layouts, l.options.pipeline_schedule, l.flow);
     }},
    {"pipeline_microbatches", Target::any, Needs::nothing,
     "cuts the loop over microbatches into the parts of a pipeline",
     [](Lowering& l) { pipeline_microbatches(l.graph, l.options.pipeline_schedule, l.flow); }},
    {"localize", Target::any, Needs::nothing,
     "makes steps and buffers of a rank's slices (flow to Program)",
     [](Lowering& l) {
       l.program = localize(l.graph, l.flow, l.rule_layouts);
       l.is_program = true;
       if (l.options.offload_state) offload_state(l.graph, l.program);
     }},
    {"two_stage_reduce", Target::cpu, Needs::nothing, "reduces large tensors by their rows first",
     [](Lowering& l) { two_stage_reduce(l.program, l.options.longest_row); }},
    {"save_expert_activations", Target::any, Needs::fuse,
     "keeps matmuls of experts for the gradient",
     [](Lowering& l) { save_expert_activations(l.program); }},
    {"fuse_pointwise", Target::any, Needs::fuse, "merges pointwise steps",
     [](Lowering& l) { fuse_pointwise(l.program, l.options.longest_row); }},
    {"fuse_epilogues", Target::any, Needs::fuse,
     "moves pointwise instructions into the matmul before them",
     [](Lowering& l) {
       if (l.options.takes_epilogue) fuse_epilogues(l.program, l.options.takes_epilogue);
     }},
    {"fuse_prologues", Target::gpu, Needs::fuse,
     "moves pointwise instructions into the reduction after them",
     [](Lowering& l) { fuse_prologues(l.program); }},
    {"recompute_rows", Target::gpu, Needs::fuse, "computes a tensor again from one number per row",
     [](Lowering& l) { recompute_rows(l.program); }},
    {"fuse_attention_delta", Target::gpu, Needs::fuse,
     "leaves a dot product to the gradient of attention",
     [](Lowering& l) {
       if (l.options.may_own_dot) fuse_attention_delta(l.program, l.options.may_own_dot);
     }},
    {"bucket_collectives", Target::any, Needs::nothing, "combines collectives",
     [](Lowering& l) {
       if (l.options.overlap && l.options.seconds) l.unbucketed = l.program;
       bucket_collectives(l.program, l.options.bucket_bytes, l.options.prices);
     }},
    {"schedule", Target::any, Needs::overlap, "moves collectives apart from their waits",
     [](Lowering& l) { schedule_filled(l.program, std::move(l.unbucketed), l.options); }},
    {"collective_matmul", Target::any, Needs::overlap,
     "cuts a matmul and its collective into chunks",
     [](Lowering& l) {
       collective_matmul(l.program, l.options.chunks, l.options.prices, l.options.takes_epilogue);
     }},
    {"group_tensors", Target::gpu, Needs::fuse, "updates many tensors in one launch",
     [](Lowering& l) { group_tensors(l.program); }},
    {"fuse_bias_grad", Target::gpu, Needs::fuse, "sums the gradient of a bias in a matmul",
     [](Lowering& l) { fuse_bias_grad(l.program, l.options.takes_epilogue); }},
    {"merge_reductions", Target::gpu, Needs::fuse, "merges reductions of one operand",
     [](Lowering& l) { merge_reductions(l.program); }},
    {"fuse_norm_grad_sums", Target::gpu, Needs::fuse, "sums over rows where they are walked",
     [](Lowering& l) { fuse_norm_grad_sums(l.program); }},
    {"concat_k_matmuls", Target::gpu, Needs::fuse, "makes one matmul of a sum of matmuls",
     [](Lowering& l) {
       const LowerOptions& o = l.options;
       concat_k_matmuls(l.program, o.prices, o.takes_epilogue, o.workspace_bytes);
     }},
    {"batch_matmuls", Target::gpu, Needs::fuse, "makes one batched matmul of many",
     [](Lowering& l) {
       const LowerOptions& o = l.options;
       batch_matmuls(l.program, o.prices, o.takes_epilogue, o.workspace_bytes);
     }},
    {"await_late", Target::any, Needs::overlap,
     "awaits transfers between stages where their data is read",
     [](Lowering& l) { await_late(l.program); }},
    {"plan_memory", Target::any, Needs::nothing, "gives every buffer its place",
     [](Lowering& l) {
       add_workspaces(l.program, l.options.workspace_bytes);
       plan_memory(l.program);
     }},
};

bool is_wanted(const Pass& pass, const LowerOptions& options) {
  return pass.needs == Needs::nothing ||
         (pass.needs == Needs::fuse ? options.fuse : options.overlap);
}

}  // namespace

std::vector<PassInfo> passes() {
  std::vector<PassInfo> list;
  constexpr const char* kDevices[] = {"", "cpu", "cuda"};
  for (const Pass& pass : kPasses)
    list.push_back({pass.name, kDevices[static_cast<size_t>(pass.target)], pass.does});
  return list;
}

Program lower(const Graph& graph, const LowerOptions& options) {
  const RuleLayouts rule_layouts(graph, options.mesh, options.layout, options.strict_chunks);
  Lowering l{graph, options, rule_layouts};
  for (const Pass& pass : kPasses) {
    if (pass.target != Target::any && pass.target != options.target) continue;
    if (is_wanted(pass, options)) pass.run(l);
    if (options.after_pass) options.after_pass(pass.name, [&] { return l.text(); });
  }
  return std::move(l.program);
}

}  // namespace tessera
