// Rows of op_cases and arguments that are hard to compute, on whatever device "cuda" is, beside the
// CPU. Each function returns what differs, a line each.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ops/op_cases_run.h"

namespace tessera::test {

struct RowOnGpu {
  std::unique_ptr<BuiltCase> built;
  std::unique_ptr<Session> session;
};

/// Values of the last of `runs` runs: a GPU captures what runs again. `one`: a cluster of one rank.
std::string errors_of(const RowOnGpu& row, Cluster& one, DType type, int runs = 1);

/// Kernels of all rows are compiled before the first one runs.
std::string errors_of_rows(const std::vector<OpCase>& cases, DType type, int runs = 1);

/// Where functions take their long way: angles of many turns, quotients of many digits, powers of
/// negative and infinite numbers; and what a kernel reports.
std::string errors_of_extremes();

}  // namespace tessera::test
