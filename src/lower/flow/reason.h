// Explains why a collective exists.
#pragma once

#include <string>
#include <vector>

#include "lower/flow/flow.h"
#include "lower/layout/rule_layouts.h"

namespace tessera {

/// The layout rule that causes a move of `value` over `axes`, or "". First choice: the rule that
/// puts one of the axes on one of `dims` (-1 is skipped). Else, for a partial value, the rule that
/// split the contracted dim, found by walking back through linear ops; for another value, the rule
/// of the factor along which its producer is split.
std::string reason_for(const Flow& flow, const RuleLayouts& rule_layouts, int value,
                       const std::vector<int>& axes, const std::vector<int>& dims);

}  // namespace tessera
