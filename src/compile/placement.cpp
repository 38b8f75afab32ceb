#include "tessera/placement.h"

#include "base/fail.h"
#include "compile/buffer_lives.h"
#include "compile/lowering.h"
#include "compile/program_variants.h"
#include "cost/cost.h"
#include "lower/placed_tensors.h"

namespace tessera {

Placement placement(const Graph& graph, const CompileOptions& options,
                    const std::string& function) {
  LowerOptions lowering = lowering_of(options, options.functions);
  lowering.workspace_bytes = workspace_on(options.device, options.threads_per_rank);
  const Program program = lower_chosen(graph, lowering);
  const Function& f = program.functions[static_cast<size_t>(program.function(function))];
  Placement result{
      options.mesh, placed_tensors(graph, lowering, function), {}, {}, program.transient_bytes};
  for (const Step& step : f.steps) {
    const std::string kernel = name_of(step), &tensor = step.origin.name;
    result.steps.push_back(kernel == tensor ? kernel : kernel + " " + tensor);
  }
  for (const auto& [buffer, life] : buffer_lives(program, f, true)) {
    const Buffer& b = program.buffers[static_cast<size_t>(buffer)];
    result.buffers.push_back(
        {b.name, b.offset, b.bytes * (b.alternates ? 2 : 1), life.first, life.second});
  }
  return result;
}

std::vector<std::string> axis_links(const Mesh& mesh, const Machine& machine) {
  const Costs costs(machine, mesh);
  std::vector<std::string> links;
  for (int axis = 0; axis < mesh.rank(); ++axis) links.push_back(costs.link({axis}));
  return links;
}

}  // namespace tessera
