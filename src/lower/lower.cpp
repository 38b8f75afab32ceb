// The list of passes.
#include "lower/lower.h"

#include "lower/partition.h"
#include "lower/passes.h"

namespace tessera {

namespace {
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
/// Optimizer state of more than one element goes to the host's memory: a number by itself (a step
/// counter) would save nothing.
void offload_state(const Graph& graph, Program& program) {
  for (size_t s = 0; s < program.stored.size(); ++s) {
    const View& view = program.ports[static_cast<size_t>(program.stored[s])].view;
    if (graph.stored()[s].purpose == Purpose::state && view.elements() > 1)
      program.buffers[static_cast<size_t>(view.buffer)].arena = ArenaKind::offloaded;
  }
}
}  // namespace

Program lower(const Graph& graph, const LowerOptions& options) {
  auto after = [&](const char* pass, const std::function<std::string()>& text) {
    if (options.after_pass) options.after_pass(pass, text);
  };
  const HomeLayouts homes(graph, options.mesh, options.layout);
  Flow flow = partition(graph, homes, options.functions, options.kernels,
                        {options.init, options.wide_sums, options.sums_of_parts});
  after("partition", [&] { return to_string(flow, options.mesh); });
  insert_masks(flow, homes);
  after("masks", [&] { return to_string(flow, options.mesh); });
  Program program = localize(graph, flow, homes);
  if (options.offload_state) offload_state(graph, program);
  after("localize", [&] { return to_string(program); });
  if (options.fuse) fuse(program);
  after("fuse", [&] { return to_string(program); });
  if (options.fuse && options.takes_epilogue) {
    end_products(program, options.takes_epilogue);
    after("epilogue", [&] { return to_string(program); });
  }
  if (options.fuse && options.begins_reductions) {
    begin_reductions(program);
    after("prologue", [&] { return to_string(program); });
  }
  combine(program, options.bucket_bytes, options.prices);
  after("combine", [&] { return to_string(program); });
  if (options.overlap) schedule(program);
  after("schedule", [&] { return to_string(program); });
  if (options.overlap) chunk(program, options.chunks, options.prices, options.takes_epilogue);
  after("chunk", [&] { return to_string(program); });
  add_workspaces(program, options.workspace_bytes);
  plan_memory(program);
  after("memory", [&] { return to_string(program); });
  return program;
}

}  // namespace tessera
