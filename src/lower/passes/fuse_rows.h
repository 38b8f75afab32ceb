// Reductions along rows as part of fused pointwise steps (softmax, norms).
#pragma once

#include <optional>

#include "lower/passes/fuse_merge.h"
#include "program/program.h"

namespace tessera {

/// A reduction along one dense dim as a pointwise step of one row instruction. Nothing for any
/// other reduction, or if rows are too long, or long and few.
std::optional<Step> row_step(const Step& reduce, const FuseLimits& limits);

/// A pointwise step with one element per row, as a step over all elements of the rows of `rows` (a
/// step with row instructions). Nothing if its iteration space does not match.
std::optional<Step> along_row(const Step& step, const Step& rows);

/// True if two pointwise steps over one iteration space have the same rows, if any.
bool rows_agree(const Step& first, const Step& second, const FuseLimits& limits);

}  // namespace tessera
