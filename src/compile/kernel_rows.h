// The steps of a function as rows of a table: what runs, how often, and how long at least.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cost/cost.h"
#include "tessera/explain.h"

namespace tessera {

/// "gpt.block3.attention" -> "gpt.block*.attention": one name for what repeated layers do alike.
std::string without_numbers(const std::string& name);

/// The compute steps of a function, those of one kernel, source line and name as one row (numbers
/// in names count as equal: block0, block1, ...); longest first. measured: seconds of each step in
/// one run, those of loops too, if given. Then the row that loses most time against the roofline
/// comes first.
std::vector<KernelReport> kernel_rows(const Function& function, const Costs& costs,
                                      const std::map<const Step*, double>& measured = {});

}  // namespace tessera
