// From flow to Program.
#pragma once

#include "lower/flow/flow.h"
#include "lower/layout/rule_layouts.h"
#include "program/program.h"

namespace tessera {

/// Turns slices into buffers, views and steps.
Program localize(const Graph& graph, const Flow& flow, const RuleLayouts& rule_layouts);

}  // namespace tessera
