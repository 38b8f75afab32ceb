// Microbatches that pass through stages.
#pragma once

#include <set>
#include <string>

#include "lower/flow/flow.h"

namespace tessera {

/// Splits each loop over microbatches whose iterations have layers in stages (FlowLoop::stage_axis)
/// into parts: what stands before the layers, the layers, what stands behind them, their gradient,
/// and so on. The table of the schedule (PipelineSchedule::name) says in which tick a stage runs a
/// part for a microbatch (FlowLoop::share). All parts are one loop over ticks; what a part reads of
/// an earlier one is kept for as many microbatches as there are between the two. But for a schedule
/// whose passes follow one another (gpipe): then each loop of layers is a loop over ticks of its
/// own, and what a part reads is kept for every microbatch.
/// Throws a usage error for an unknown schedule, and for one that does not take as many chunks of
/// layers as assign_virtual_stages() has made.
void pipeline_microbatches(const Graph& graph, const std::string& schedule, Flow& flow);

/// True for layers in stages that hand something on. Others run on all stages at once.
bool has_stages(const FlowNode& node);
/// True for such a loop over microbatches.
bool is_pipeline(const FlowNode& node);
/// Adds the values that a node or its iterations read.
void add_read(const FlowNode& node, std::set<int>& read);

}  // namespace tessera
