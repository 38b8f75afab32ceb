// What of CompileOptions goes to the compile half.
#pragma once

#include "compile/kernel_info.h"
#include "lower/lower.h"
#include "tessera/compile_options.h"
#include "tessera/machine.h"

namespace tessera {

/// Without a workspace, for `functions`. Throws a usage error for a machine that cannot price the
/// mesh.
LowerOptions lowering_of(const CompileOptions& options, std::vector<FunctionSpec> functions);

/// Products take what stands behind them, and reductions what stands before them
/// (src/lower/epilogue.cpp and prologue.cpp), unless TESSERA_EPILOGUES is off.
/// lowering_of() does so for devices "cuda" and "cuda:share".
void fuse_for_gpu(LowerOptions& lowering);

/// Workspace bytes of a step on the CPU.
std::function<int64_t(const Step&)> workspace_on_cpu(const CompileOptions& options);

/// Empty where transfers take the cores that compute: then nothing can be arranged.
StepPrices prices_of(const Machine& machine, const Mesh& mesh);

}  // namespace tessera
