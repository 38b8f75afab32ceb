// The steps of a function as rows of a table: what runs, how often, and how long at least.
#pragma once

#include <span>
#include <vector>

#include "cost/cost.h"
#include "tessera/explain.h"

namespace tessera {

/// The compute steps of a function, those of one kernel, source line and name as one row (numbers
/// in names count as equal: block0, block1, ...); longest first. measured: seconds of each step of
/// the function in one run, if given. Then a loop is one row, as only the whole of it has a time,
/// and the row that loses most time against the roofline comes first.
std::vector<KernelReport> kernel_rows(const Function& function, const Costs& costs,
                                      std::span<const double> measured = {});

}  // namespace tessera
