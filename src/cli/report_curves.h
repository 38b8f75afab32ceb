// The curves of training jobs on their page.
#pragma once

#include <vector>

#include "cli/run_log.h"
#include "pages/page.h"

namespace tessera::cli {

/// Adds a chart for each kind of number that a job has; all jobs are in the same charts, by step,
/// token or second of training.
void add_curves(pages::Page& page, const std::vector<RunLog>& logs);

}  // namespace tessera::cli
