// Microbatches that pass through stages.
#pragma once

#include "lower/flow/flow.h"

namespace tessera {

/// Splits each loop over microbatches whose iterations have layers in stages (FlowLoop::stage_axis)
/// into loops that follow one another: what stands before the layers, the layers, what stands
/// behind them, their gradient, and so on. The loops of layers become pipelines
/// (FlowLoop::pipeline_axis). What one of these loops reads of an earlier one is kept for every
/// microbatch.
void pipeline_microbatches(const Graph& graph, Flow& flow);

}  // namespace tessera
