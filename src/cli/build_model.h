// Building a job's model, with the checks that include/tessera/cli.h promises.
#pragma once

#include <cstdint>

#include "cli/commands.h"

namespace tessera::cli {

/// The model of the job in `graph`, for `batch` examples. Throws a usage error that names the rule
/// of ModelSpec::build that the model breaks.
nn::Model build_model(const Job& job, Graph& graph, int64_t batch, bool partial);

}  // namespace tessera::cli
