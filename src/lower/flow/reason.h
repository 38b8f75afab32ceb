// Why a collective is there.
#pragma once

#include <string>
#include <vector>

#include "lower/flow/flow.h"
#include "lower/layout/rule_layouts.h"

namespace tessera {

/// The layout rule that asks for a move of `value` over `axes`: the one that puts an axis on one of
/// the dims (-1: none), else the one that split the dim whose reduction left the value partial, any
/// number of linear ops before. "" if there is none.
std::string reason_for(const Flow& flow, const RuleLayouts& rule_layouts, int value,
                       const std::vector<int>& axes, const std::vector<int>& dims);

}  // namespace tessera
