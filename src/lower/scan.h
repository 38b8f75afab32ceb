// Ops that scan along a dim which is split: every rank scans its slice and adds what the slices
// before it come to.
#pragma once

#include "lower/build.h"
#include "lower/choose.h"

namespace tessera {

/// The factor with role scan that is split, or -1.
int split_scan(const IndexSpace& space, const std::vector<std::vector<int>>& splits);

/// Adds the nodes of op `node`, complete but for its results, of which factor `factor` is scanned
/// and split; returns the result, in the layout `out`. What travels is one element a slice.
int add_split_scan(FlowBuilder& build, Resharder& resharder, const HomeLayouts& homes,
                   const FlowNode& node, const OpCall& call, int factor, const TensorLayout& out);

}  // namespace tessera
