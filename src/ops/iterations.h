// What scan(), while_loop() and microbatches check and collect of their iterations.
#pragma once

#include <vector>

#include "base/fail.h"
#include "tessera/loops.h"

namespace tessera {

template <class Function>
void require_function(const char* op, const char* what, const Function& function, Loc at) {
  TESSERA_REQUIRE(static_cast<bool>(function), "[{}] {} is an empty function ({})", op, what,
                  where(at));
}

/// Throws a usage error for an empty Tensor among `made`.
void require_made(const char* op, const char* what, const std::vector<Tensor>& made, Loc at);

/// The results of a loop by kind: `carries`, then `stacked` tensors, then sums.
IterationResults results_of(const std::vector<Tensor>& made, size_t carries, size_t stacked);

/// Adds an iteration of a loop in copies: its carries, whose shapes and dtypes must not change, and
/// its sums. The first one's sums are where sums start.
void add_iteration(IterationResults& all, IterationResults made, bool is_first, Loc at);

}  // namespace tessera
