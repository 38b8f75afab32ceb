// Rules of the planner that give ranks equal work: `length:context*2`.
#pragma once

#include "plan/segments.h"

namespace tessera {

/// A rule for each free dim that the assignment splits and along which the work of an op grows
/// (Op::sharded_body), with the axes that it has. `bytes` is not known: 0.
std::vector<SegmentRule> balanced_rules(const Graph& graph, const StepSummary& summary,
                                        const Space& space, const Assignment& a);

}  // namespace tessera
