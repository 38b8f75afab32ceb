// Microbatches that pass through stages.
#pragma once

#include "lower/flow/flow.h"
#include "tessera/compile_options.h"

namespace tessera {

/// Splits each loop over microbatches whose iterations have layers in stages (FlowLoop::stage_axis)
/// into parts: what stands before the layers, the layers, what stands behind them, their gradient,
/// and so on. The schedule says in which turn a stage runs a part for a microbatch
/// (FlowLoop::turns).
///   gpipe: the parts follow one another. Each loop of layers is a pipeline of its own. What a part
///   reads of an earlier one is kept for every microbatch.
///   one_forward_one_backward: all parts are one pipeline. What a part reads of an earlier one is
///   kept for as many microbatches as there are between the two. Interleaved if deal_layers() has
///   made chunks of layers.
/// Throws a usage error for chunks under gpipe.
void pipeline_microbatches(const Graph& graph, PipelineSchedule schedule, Flow& flow);

/// True for such a loop over microbatches.
bool is_pipeline(const FlowNode& node);

}  // namespace tessera
