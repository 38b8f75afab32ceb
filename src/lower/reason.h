// Why a collective is there.
#pragma once

#include <string>
#include <vector>

#include "lower/flow.h"
#include "lower/home.h"

namespace tessera {

/// The layout rule that asks for a move of `value` over `axes`: the one that puts an axis on one of
/// the dims (-1: none), else the one that split the dim whose reduction left the value partial,
/// however many linear ops ago. "" if there is none.
std::string reason_for(const Flow& flow, const HomeLayouts& homes, int value,
                       const std::vector<int>& axes, const std::vector<int>& dims);

}  // namespace tessera
