// Masks of padding.
#pragma once

#include "lower/flow/flow.h"
#include "lower/layout/rule_layouts.h"

namespace tessera {

/// Inserts a mask where a consumer needs the padding of an operand to be the identity of its
/// reduction (or zero), and the padding may hold anything else. A mask is a select, never a
/// multiply. Stored tensors get zero padding.
void insert_padding_masks(Flow& flow, const RuleLayouts& rule_layouts);

}  // namespace tessera
