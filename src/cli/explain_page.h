// The page of `tessera explain --html`.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tessera/explain.h"
#include "tessera/placement.h"
#include "tessera/simulate.h"

namespace tessera::cli {

/// `notes`: about the time of a step, a paragraph each. `simulation` and `machine` are null where
/// no times are predicted. `files`: source_files() of the graph.
std::string explain_page(const std::string& title, const std::string& subtitle,
                         const Explanation& explanation, const std::vector<std::string>& notes,
                         const Placement& placement, const Simulation* simulation,
                         const Machine* machine, const std::map<std::string, std::string>& files);

}  // namespace tessera::cli
