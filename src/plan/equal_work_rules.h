// Rules of the planner that give ranks equal work where equal slices are not.
#pragma once

#include "plan/segments.h"

namespace tessera {

/// For each free dim that the assignment splits and along which the work of an op grows
/// (Op::by_slices): a rule that asks for equal work (`length:context*2`), and rules that split the
/// op by another dim instead, over the same axes (`@/*attention*/ heads:context`).
std::vector<SegmentRule> equal_work_rules(const Graph& graph, const StepSummary& summary,
                                          const Space& space, const Assignment& a);

}  // namespace tessera
