// Steps of a Program as they run here, in a session with CompileOptions::profile.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/machine.h"
#include "tessera/tessera.h"

namespace tessera::cli {

double median(std::vector<double> values);

/// Median seconds of each step of `function` over a few runs, by position; collectives with their
/// waits. All ranks must call.
std::vector<std::pair<StepTime, double>> step_times(Session& session, const std::string& function);

/// How much longer the kernels of a step of training take than `machine` predicts, a small GPT with
/// its batch over all axes: operands come from farther away than when a kernel runs alone, and
/// sizes are others. All ranks must call.
std::vector<KernelContext> kernels_in_context(Cluster& cluster, const CompileOptions& options,
                                              const Machine& machine);

}  // namespace tessera::cli
