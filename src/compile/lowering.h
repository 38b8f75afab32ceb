// From CompileOptions to LowerOptions.
#pragma once

#include "compile/kernel_info.h"
#include "lower/lower.h"
#include "tessera/compile_options.h"
#include "tessera/machine.h"

namespace tessera {

/// The LowerOptions for `functions`, without workspace_bytes. Throws a usage error if
/// options.machine cannot price the mesh.
LowerOptions lowering_of(const CompileOptions& options, std::vector<FunctionSpec> functions);

/// LowerOptions::workspace_bytes of one rank on a device that need not be there: "cpu" with
/// `threads` of the rank, or a GPU with all of CUDA's libraries.
std::function<int64_t(const Step&)> workspace_on(const std::string& device, int threads);

/// The prices on a machine. Empty if transfers use the cores that compute: nothing can overlap
/// there.
StepPrices prices_of(const Machine& machine, const Mesh& mesh);
/// LowerOptions::seconds.
std::function<double(const Program&)> seconds_of(const Machine& machine, const Mesh& mesh);

}  // namespace tessera
