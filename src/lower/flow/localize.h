// From Flow to Program.
#pragma once

#include "lower/flow/flow.h"
#include "lower/layout/rule_layouts.h"
#include "program/program.h"

namespace tessera {

/// Makes the Program of one rank's slices: buffers, views and steps. Every collective is followed
/// by its wait; later passes move them apart.
Program localize(const Graph& graph, const Flow& flow, const RuleLayouts& rule_layouts);

}  // namespace tessera
