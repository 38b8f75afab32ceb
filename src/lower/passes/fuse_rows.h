// Reductions along rows in fused pointwise steps.
#pragma once

#include <optional>

#include "program/program.h"

namespace tessera {

/// A reduction along one dense dim as a pointwise step of one row instruction; null if it is
/// another reduction, or its rows are too long for a block.
std::optional<Step> row_step(const Step& reduce);

/// A pointwise step over the rows of `rows` (a step with row instructions) as one over the rows'
/// elements; null if its iteration space is another.
std::optional<Step> along_row(const Step& step, const Step& rows);

/// True if two pointwise steps over one iteration space have the same rows, if any.
bool rows_agree(const Step& first, const Step& second);

}  // namespace tessera
