// Measures the steps of a Program in a session with CompileOptions::profile.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/machine.h"
#include "tessera/tessera.h"

namespace tessera::cli {

/// Median seconds of each step of `function` over several runs, in order; a collective includes its
/// wait. All ranks must call.
std::vector<std::pair<StepTime, double>> step_times(Session& session, const std::string& function);

/// A value that needs a collective whose axes split its dims `split`.
struct CollectiveProbe {
  Tensor value;
  std::string split;  ///< "pieces,parts"
};
/// Of `size` elements, for a mesh of so many ranks. Over several axes it may take a step each.
CollectiveProbe collective_probe(Graph& g, const std::string& name, CollectiveKind kind,
                                 int64_t size, int64_t ranks, DType dtype = DType::float32);
/// Whether a step runs such a collective. An all-to-all may be one exchange of slices.
bool runs(const StepTime& step, CollectiveKind kind);

/// How much longer kernels take in a training step (a small GPT with its batch split over all axes)
/// than `machine` predicts: operands are not in cache as in isolated runs, and sizes differ. All
/// ranks must call.
std::vector<KernelContext> kernels_in_context(Cluster& cluster, const CompileOptions& options,
                                              const Machine& machine);

/// A note for a profile that was measured while others worked; "" if they took less than half a
/// processor or a twentieth of them. `load`: the load average (runnable processes) before.
std::string busy_note(double load, int processors);

}  // namespace tessera::cli
