// Masks of padding.
#pragma once

#include "lower/flow/flow.h"
#include "lower/layout/rule_layouts.h"

namespace tessera {

/// Inserts a mask where an op reduces or orders a dim whose padding may not hold the neutral
/// element, or needs zero padding. A mask is a select, never a multiply (0 * NaN). New values of
/// stored tensors get zero padding.
void insert_padding_masks(Flow& flow, const RuleLayouts& rule_layouts);

}  // namespace tessera
