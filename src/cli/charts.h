// Charts that several pages have.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/words.h"
#include "cli/plain_charts.h"
#include "pages/page.h"
#include "tessera/placement.h"
#include "tessera/simulate.h"

namespace tessera::cli {

/// The predicted steps by lane: compute, hidden and exposed communication; of a pipeline by stage.
pages::Json time_line_chart(const std::string& title, const Simulation& simulation);
/// What the stages of a Program's pipeline do, turn by turn; null if it has none.
pages::Json stages_chart(const Simulation& simulation);
/// The transient buffers of a function: when they live, and where in the arena.
pages::Json memory_chart(const Placement& placement);
/// The ranks of a mesh in the domains of a machine's innermost link; without a machine all
/// together.
pages::Json mesh_chart_on(const Mesh& mesh, const Machine* machine);
/// How every tensor is cut over the mesh.
pages::Json cut_chart(const Placement& placement);
/// What fills the memory of a rank, as memory_parts() says.
template <class Memory>
pages::Json memory_bar(const std::string& label, const Memory& memory) {
  std::vector<std::pair<std::string, double>> parts;
  for (const auto& [name, bytes] : memory_parts(memory))
    parts.emplace_back(name, static_cast<double>(bytes));
  return bar_chart("what fills the memory of a rank", "B", label, parts);
}
/// Compute, slowed, exposed and bubble of a simulated step.
Causes causes_of(const Simulation& simulation);

}  // namespace tessera::cli
