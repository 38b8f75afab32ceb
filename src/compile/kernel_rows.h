// The steps of a function as rows of a table: what runs, how often, and how long at least.
#pragma once

#include <vector>

#include "cost/cost.h"
#include "tessera/explain.h"

namespace tessera {

/// The compute steps of a function, those of one kernel, source line and name as one row (numbers
/// in names count as equal: block0, block1, ...); longest first.
std::vector<KernelReport> kernel_rows(const Function& function, const Costs& costs);

}  // namespace tessera
